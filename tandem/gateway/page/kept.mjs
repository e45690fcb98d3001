// Small choices that this browser keeps. A browser may refuse to keep anything; then they last as long
// as the page.

export function kept(key, otherwise) {
  try {
    const text = localStorage.getItem(key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // no room, or not allowed
  }
}
