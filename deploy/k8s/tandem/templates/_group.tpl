{{/*
A component whose replicas are groups of pods, over the GPUs of several nodes: the leader is the service, the
others lend their GPUs by Ray. When one of them ends, the whole group begins anew. Usage as in _components.tpl.
*/}}
{{- define "tandem.group" }}
{{- $values := index .root.Values .component.key }}
{{- $workers := dict "root" .root "component" (dict "name" (printf "%s-worker" .component.name)) }}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ .component.fullname }}-group
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.component.labels" . | nindent 4 }}
spec:
  replicas: {{ $values.replicas | default 1 }}
  leaderWorkerTemplate:
    size: {{ $values.vllm.nodes }}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      {{- include "tandem.component.pod" . | nindent 6 }}
    workerTemplate:
      {{- include "tandem.group.worker" . | nindent 6 }}
{{- if .root.Values.networkPolicy.enabled }}
---
# Ray and NCCL choose their ports: everything among the pods of groups, and nothing else.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .component.fullname }}-group
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tandem.component.labels" . | nindent 4 }}
spec:
  podSelector: &group
    matchExpressions:
      {{- range $name, $label := include "tandem.selectorLabels" .root | fromYaml }}
      - {key: {{ $name }}, operator: In, values: [{{ $label }}]}
      {{- end }}
      - {key: app.kubernetes.io/component, operator: In, values: [{{ .component.name }}, {{ $workers.component.name }}]}
  policyTypes: [Ingress, Egress]
  ingress:
    - from: [{podSelector: *group}]
  egress:
    - to: [{podSelector: *group}]
{{- end }}
{{- end }}

{{/* The pod template of those that lend their GPUs: the leader's, but for what makes it a service. */}}
{{- define "tandem.group.worker" -}}
{{- $name := printf "%s-worker" .component.name }}
{{- $pod := include "tandem.component.pod" . | fromYaml }}
{{- $_ := set $pod.metadata.labels "app.kubernetes.io/component" $name }}
{{- $container := first $pod.spec.containers }}
{{- range list "ports" "startupProbe" "readinessProbe" "livenessProbe" "lifecycle" }}
{{- $_ := unset $container . }}
{{- end }}
{{- /* They serve nobody: no certificates, keys or settings. */}}
{{- $env := list }}
{{- range $container.env }}
{{- if not (hasPrefix "TANDEM_" .name) }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- $_ := set $container "env" $env }}
{{- $mounts := list }}
{{- range $container.volumeMounts }}
{{- if not (has .name (list "tls" "keys")) }}{{ $mounts = append $mounts . }}{{ end }}
{{- end }}
{{- $_ := set $container "volumeMounts" $mounts }}
{{- $volumes := list }}
{{- range $pod.spec.volumes }}
{{- if not (has .name (list "tls" "keys")) }}{{ $volumes = append $volumes . }}{{ end }}
{{- end }}
{{- $_ := set $pod.spec "volumes" $volumes }}
{{- $_ := set $container "args" (list "until ray start --address=$LWS_LEADER_ADDRESS:6379 --disable-usage-stats --block; do sleep 5; done") }}
{{- range $constraint := $pod.spec.topologySpreadConstraints }}
{{- $_ := set $constraint.labelSelector.matchLabels "app.kubernetes.io/component" $name }}
{{- end }}
{{- toYaml $pod }}
{{- end }}
