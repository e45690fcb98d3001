{{/*
What a component is, whatever the values say. `folders` are its volumes and where they are mounted; a
component with any is a StatefulSet, since a folder belongs to one process. `headless`: its name stands for every
replica, so that gRPC spreads calls over them; each call's stream stays where it was opened.
*/}}
{{- define "tandem.fixed" -}}
verifier: {program: verifier, place: cloud, port: 50051, folders: {hub: /hub, kv: /kv}, computes: true, headless: true}
cloudRetriever: {program: retriever, place: cloud, port: 50053, folders: {index: /index}}
cloudAggregator: {program: aggregator, place: cloud, port: 50050, headless: true}
drafter: {program: drafter, place: edge, port: 50052, folders: {hub: /hub, kv: /kv}, computes: true, headless: true}
edgeRetriever: {program: retriever, place: edge, port: 50053, folders: {index: /index}}
edgeAggregator: {program: aggregator, place: edge, port: 50050, http: true}
{{- end }}

{{/*
The components of this release as {items: […]}, each with what is fixed, `key`, `name` and `fullname`.
Usage: range (include "tandem.components" . | fromYaml).items
*/}}
{{- define "tandem.components" -}}
items:
{{- range $key, $fixed := include "tandem.fixed" . | fromYaml }}
{{- if and (index $.Values $fixed.place).enabled (index $.Values $key).enabled }}
{{- $name := kebabcase $key }}
{{- $own := dict "key" $key "name" $name "fullname" (printf "%s-%s" (include "tandem.fullname" $) $name) }}
{{- if and $.Values.edge.perNode (or (eq $key "drafter") (eq $key "edgeAggregator")) }}
{{- $_ := set $own "perNode" true }}
{{- end }}
- {{ merge $own $fixed | toJson }}
{{- end }}
{{- end }}
{{- end }}

{{/* Usage: include "tandem.component.selectorLabels" (dict "root" $ "component" $component) */}}
{{- define "tandem.component.selectorLabels" -}}
{{ include "tandem.selectorLabels" .root }}
app.kubernetes.io/component: {{ .component.name }}
{{- end }}

{{- define "tandem.component.labels" -}}
{{ include "tandem.labels" .root }}
app.kubernetes.io/component: {{ .component.name }}
{{- end }}

{{- define "tandem.component.image" -}}
{{- $image := (index .root.Values .component.key).image }}
{{- $tag := coalesce $image.tag .root.Values.image.tag .root.Chart.AppVersion }}
{{- $gpu := (index .root.Values .component.key).gpu | default dict }}
{{- $onGpu := get $gpu "enabled" | default false }}
{{- $special := ternary $gpu $image $onGpu }}
{{- $repository := $special.repository }}
{{- $digest := get $special "digest" }}
{{- if $digest }}
{{- printf "%s%s@%s" .root.Values.image.registry $repository $digest }}
{{- else }}
{{- printf "%s%s:%s" .root.Values.image.registry $repository $tag }}
{{- end }}
{{- end }}

{{/* "true" for the component that serves HTTP, where callers can be told apart by keys or need none. */}}
{{- define "tandem.servesHttp" -}}
{{- $security := .root.Values.security }}
{{- if and (hasKey .component "http") (or $security.insecure $security.edge.httpKeys) }}true{{ end }}
{{- end }}

{{/*
The name of the Service that leads to the drafter of the caller's own node. Usage: (dict "root" $)
*/}}
{{- define "tandem.ownNodesDrafter" -}}
{{- printf "%s-drafter-local" (include "tandem.fullname" .root) }}
{{- end }}

{{/* The secret for the server that computes the target, of a component that asks one. */}}
{{- define "tandem.targetSecret" -}}
{{- $target := get (index .root.Values .component.key) "target" | default dict }}
{{- if get $target "url" }}
{{- if (index .root.Values .component.key).gpu.enabled }}{{ fail "verifier.target: that server computes; gpu.enabled must be false" }}{{ end }}
{{- if and $target.ca (not $target.secret) }}{{ fail "verifier.target.ca: needs verifier.target.secret" }}{{ end }}
{{- $target.secret }}
{{- end }}
{{- end }}

{{/* The claim with the models of all replicas, where there is one. */}}
{{- define "tandem.modelsClaim" -}}
{{- $preload := .Values.modelHub.preload }}
{{- if $preload.enabled }}{{ $preload.claim | default (printf "%s-hub" (include "tandem.fullname" .)) }}{{ end }}
{{- end }}

{{/*
How a component of this release is called, by its key: HOST:PORT, or dns:///HOST:PORT where the name
stands for replicas. Nothing if it is not in this release. Usage: (dict "root" $ "key" "drafter")
*/}}
{{- define "tandem.address" -}}
{{- $fixed := index (include "tandem.fixed" .root | fromYaml) .key }}
{{- if and (index .root.Values $fixed.place).enabled (index .root.Values .key).enabled }}
{{- $host := printf "%s-%s.%s.svc" (include "tandem.fullname" .root) (kebabcase .key) .root.Release.Namespace }}
{{- printf "%s%s:%v" (ternary "dns:///" "" (hasKey $fixed "headless")) $host $fixed.port }}
{{- end }}
{{- end }}
