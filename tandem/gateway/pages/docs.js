// Shows /openapi.json. The key, where one is needed, stays in this page's memory.
"use strict";

const login = document.getElementById("login");
const refusal = document.getElementById("refusal");

async function show(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch("openapi.json", { headers });
  if (!answer.ok) {
    const { error } = await answer.json();
    login.hidden = answer.status !== 401;
    refusal.textContent = key || login.hidden ? error.message : "";
    return;
  }
  login.hidden = true;
  const spec = await answer.json();
  // This release of Swagger UI reads 3.1 documents, but only by the older name.
  spec.openapi = "3.0.3";
  spec.servers = [{ url: new URL(".", location.href).pathname.replace(/\/$/, "") || "/" }];
  const ui = SwaggerUIBundle({
    spec,
    dom_id: "#api",
    deepLinking: true,
    validatorUrl: null,
    onComplete: () => key && ui.preauthorizeApiKey("key", key),
  });
}

login.addEventListener("submit", (event) => {
  event.preventDefault();
  show(document.getElementById("key").value);
});
show("");
