{{/*
The settings of a component as environment. Usage as in _components.tpl. The names are those of each
service's settings model; a test starts every model with what is rendered here.
*/}}
{{- define "tandem.component.environment" -}}
{{- $values := index .root.Values .component.key }}
{{- $security := .root.Values.security }}
- {name: TANDEM_HOST, value: "0.0.0.0"}
- {name: TANDEM_PORT, value: {{ .component.port | quote }}}
- {name: TANDEM_HEALTH_PORT, value: {{ .root.Values.ports.health | quote }}}
- {name: TANDEM_METRICS_HOST, value: "0.0.0.0"}
- {name: TANDEM_METRICS_PORT, value: {{ .root.Values.ports.metrics | quote }}}
- {name: TANDEM_DRAIN_S, value: {{ .root.Values.drainSeconds | quote }}}
- {name: TANDEM_LOG_LEVEL, value: {{ .root.Values.logLevel | quote }}}
{{- if $security.insecure }}
- {name: TANDEM_INSECURE, value: "true"}
{{- else }}
- {name: TANDEM_TLS_CERTIFICATE, value: /etc/tandem/tls/tls.crt}
- {name: TANDEM_TLS_KEY, value: /etc/tandem/tls/tls.key}
- {name: TANDEM_TLS_CA, value: /etc/tandem/tls/ca.crt}
- {name: TANDEM_KEYS_FILE, value: /etc/tandem/keys/keys}
- {name: TANDEM_CALL_KEY_FILE, value: /etc/tandem/keys/call-key}
{{- if eq .component.place "edge" }}
- {name: TANDEM_CLOUD_KEY_FILE, value: /etc/tandem/keys/cloud-key}
{{- end }}
{{- end }}
{{- include (printf "tandem.environment.%s" .component.program) . }}
{{- if .component.computes }}
- {name: HF_HOME, value: {{ .component.folders.hub }}}
{{- if include "tandem.modelsClaim" .root }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
- {name: TANDEM_DOCUMENT_KV_FOLDER, value: {{ .component.folders.kv }}}
{{- $hub := .root.Values.modelHub }}
{{- with $hub.tokenSecret }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $hub.tokenKey }}}}}
{{- end }}
{{- with $hub.proxy }}
# gRPC reads these too: what is in the cluster must not go through the proxy.
- {name: HTTPS_PROXY, value: {{ . | quote }}}
- {name: NO_PROXY, value: {{ $hub.noProxy | quote }}}
{{- end }}
{{- if $values.gpu.enabled }}
- {name: TANDEM_DEVICE, value: cuda}
{{- if $values.gpu.dtype }}
- {name: TANDEM_DTYPE, value: {{ $values.gpu.dtype }}}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $setting := $values.settings }}
{{- if not (and (eq $name "dtype") $values.gpu $values.gpu.enabled $values.gpu.dtype) }}
- {name: TANDEM_{{ upper $name }}, value: {{ include "tandem.setting" $setting }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.environment.verifier" }}
{{- $target := .root.Values.verifier.target }}
{{- with $target.url }}
- {name: TANDEM_TARGET_URL, value: {{ . | quote }}}
{{- if $target.secret }}
- {name: TANDEM_TARGET_KEY_FILE, value: /etc/tandem/target/key}
{{- end }}
{{- if $target.ca }}
- {name: TANDEM_TARGET_CA, value: /etc/tandem/target/ca.crt}
{{- end }}
{{- end }}
{{- end }}

{{/* What the Prometheus of the cluster knows, for components that begin with it. */}}
{{- define "tandem.environment.measured" }}
{{- $monitoring := .root.Values.monitoring }}
{{- $settings := (index .root.Values .component.key).settings }}
{{- if and $monitoring.prometheus (not (hasKey $settings "prometheus")) }}
- {name: TANDEM_PROMETHEUS, value: {{ $monitoring.prometheus | quote }}}
{{- if not (hasKey $settings "prometheus_labels") }}
- {name: TANDEM_PROMETHEUS_LABELS, value: "suite=tandem,release={{ .root.Release.Name }}"}
{{- end }}
{{- if and .component.computes (not (hasKey $settings "prometheus_instance")) }}
# What the Prometheus operator calls this pod: its own round trip counts, not the mean of all edges.
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: TANDEM_PROMETHEUS_INSTANCE, value: "$(POD_IP):{{ .root.Values.ports.metrics }}"}
{{- end }}
{{- end }}
{{- end }}

{{- define "tandem.environment.drafter" }}
{{- include "tandem.environment.measured" . }}
{{- $verifier := .root.Values.edge.verifier | default (include "tandem.address" (dict "root" .root "key" "verifier")) }}
- {name: TANDEM_VERIFIER, value: {{ required "edge.verifier: must name the verifier, which is not in this release" $verifier | quote }}}
{{- end }}

{{- define "tandem.environment.retriever" }}
- {name: TANDEM_FOLDER, value: {{ .component.folders.index }}}
{{- if eq .component.place "edge" }}
- {name: TANDEM_ROLE, value: device}
- {name: TANDEM_OWN_SIDE, value: {{ .root.Values.edgeRetriever.ownSide | quote }}}
{{- else }}
- {name: TANDEM_ROLE, value: cloud}
{{- end }}
{{- $decoder := include "tandem.address" (dict "root" .root "key" (ternary "drafter" "verifier" (eq .component.place "edge"))) }}
{{- if and $decoder (not (hasKey (index .root.Values .component.key).settings "decoder")) }}
- {name: TANDEM_DECODER, value: {{ $decoder | quote }}}
{{- end }}
{{- end }}

{{- define "tandem.environment.aggregator" }}
{{- include "tandem.environment.measured" . }}
{{- if eq .component.place "edge" }}
- {name: TANDEM_SIDE, value: device}
{{- $drafter := include "tandem.address" (dict "root" .root "key" "drafter") | required "edgeAggregator: needs the drafter in its release" }}
{{- if .root.Values.edge.perNode }}
{{- $drafter = printf "%s.%s.svc:%v" (include "tandem.ownNodesDrafter" .) .root.Release.Namespace (index (include "tandem.fixed" .root | fromYaml) "drafter").port }}
{{- end }}
- {name: TANDEM_DRAFTER, value: {{ $drafter | quote }}}
{{- with include "tandem.address" (dict "root" .root "key" "edgeRetriever") }}
- {name: TANDEM_RETRIEVER, value: {{ . | quote }}}
{{- end }}
{{- with .root.Values.edge.cloudAggregator | default (include "tandem.address" (dict "root" .root "key" "cloudAggregator")) }}
- {name: TANDEM_CLOUD, value: {{ . | quote }}}
{{- end }}
{{- if include "tandem.servesHttp" . }}
- {name: TANDEM_HTTP_HOST, value: "0.0.0.0"}
- {name: TANDEM_HTTP_PORT, value: {{ .root.Values.edgeAggregator.httpPort | quote }}}
{{- with include "tandem.httpHosts" . }}
- {name: TANDEM_HTTP_HOSTS, value: {{ . | quote }}}
{{- end }}
{{- if not .root.Values.security.insecure }}
- {name: TANDEM_HTTP_KEYS_FILE, value: /etc/tandem/keys/http-keys}
{{- end }}
{{- else }}
- {name: TANDEM_HTTP, value: "false"}
{{- end }}
{{- else }}
- {name: TANDEM_SIDE, value: cloud}
- {name: TANDEM_DECODER, value: {{ include "tandem.address" (dict "root" .root "key" "verifier") | required "cloudAggregator: needs the verifier in its release" | quote }}}
{{- with include "tandem.address" (dict "root" .root "key" "cloudRetriever") }}
- {name: TANDEM_RETRIEVER, value: {{ . | quote }}}
{{- end }}
- {name: TANDEM_HTTP, value: "false"}
{{- end }}
{{- end }}

{{/*
The names by which HTTP callers know the edge aggregator. With keys any name will do, unless some are
given: a web page that calls by a name of its own has no key.
*/}}
{{- define "tandem.httpHosts" -}}
{{- $edge := .root.Values.edgeAggregator }}
{{- if or .root.Values.security.insecure $edge.hosts }}
{{- $place := printf "%s.%s" .component.fullname .root.Release.Namespace }}
{{- $names := list .component.fullname $place (printf "%s.svc" $place) (printf "%s.svc.cluster.local" $place) }}
{{- if $edge.external.enabled }}
{{- range list "" (printf ".%s" .root.Release.Namespace) (printf ".%s.svc" .root.Release.Namespace) }}
{{- $names = append $names (printf "%s-external%s" $.component.fullname .) }}
{{- end }}
{{- end }}
{{- if $edge.ingress.enabled }}
{{- $names = append $names $edge.ingress.host }}
{{- end }}
{{- join "," (concat $names $edge.hosts) }}
{{- end }}
{{- end }}
