{{/* The pod template of a component. Usage as in _components.tpl. */}}
{{- define "tandem.component.pod" -}}
{{- $values := index .root.Values .component.key }}
{{- $security := .root.Values.security }}
{{- $place := dict "root" .root "place" .component.place }}
metadata:
  labels:
    {{- include "tandem.component.labels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ .component.program }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tandem.serviceAccountName" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # Longer than the drain, which is longer than a round: a session's last frames leave first.
  terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds 25 }}
  {{- include "tandem.imagePullSecrets" .root | nindent 2 }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $scaling := get ($values.autoscaling | default dict) "kind" | default "none" }}
  {{- if and (not .component.perNode) (or (gt (int ($values.replicas | default 1)) 1) (ne $scaling "none")) }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tandem.component.selectorLabels" . | nindent 10 }}
  {{- end }}
  containers:
    - name: {{ .component.program }}
      image: {{ include "tandem.component.image" . | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      securityContext:
        {{- toYaml .root.Values.securityContext | nindent 8 }}
      env:
        {{- include "tandem.component.environment" . | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: {{ .component.port }}}
        - {name: health, containerPort: {{ .root.Values.ports.health }}}
        - {name: metrics, containerPort: {{ .root.Values.ports.metrics }}}
        {{- if include "tandem.servesHttp" . }}
        - {name: http, containerPort: {{ .root.Values.edgeAggregator.httpPort }}}
        {{- end }}
      # Callers hear that the pod leaves before it refuses them.
      lifecycle:
        preStop:
          exec: {command: [python, -c, "import time; time.sleep(5)"]}
      # A model may take minutes to arrive and load. Kubelet does not probe liveness of a pod that is
      # being ended, so a drain, which answers NOT_SERVING, is not cut short.
      startupProbe:
        grpc: {port: {{ .root.Values.ports.health }}}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: {{ ternary 180 24 (hasKey .component "computes") }}
      readinessProbe:
        grpc: {port: {{ .root.Values.ports.health }}}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      livenessProbe:
        grpc: {port: {{ .root.Values.ports.health }}}
        periodSeconds: 15
        timeoutSeconds: 5
        failureThreshold: 4
      resources:
        {{- include "tandem.component.resources" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if not $security.insecure }}
        - {name: tls, mountPath: /etc/tandem/tls, readOnly: true}
        - {name: keys, mountPath: /etc/tandem/keys, readOnly: true}
        {{- end }}
        {{- if include "tandem.targetSecret" . }}
        - {name: target, mountPath: /etc/tandem/target, readOnly: true}
        {{- end }}
        {{- range $name, $folder := .component.folders }}
        - {name: {{ $name }}, mountPath: {{ $folder }}}
        {{- end }}
        {{- if and .component.computes $values.models }}
        - {name: models, mountPath: /models, readOnly: true}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: 1Gi}}
    {{- if not $security.insecure }}
    # Whole folders, not single files: a mounted single file never sees a rotation.
    - {name: tls, secret: {secretName: {{ include "tandem.tlsSecret" $place }}, defaultMode: 0440}}
    - {name: keys, secret: {secretName: {{ include "tandem.keysSecret" $place }}, defaultMode: 0440}}
    {{- end }}
    {{- with include "tandem.targetSecret" . }}
    - {name: target, secret: {secretName: {{ . }}, defaultMode: 0440}}
    {{- end }}
    {{- $claims := include "tandem.component.claims" . | fromYamlArray }}
    {{- range $name, $folder := .component.folders }}
    {{- if and (eq $name "hub") (include "tandem.modelsClaim" $.root) }}
    - {name: {{ $name }}, persistentVolumeClaim: {claimName: {{ include "tandem.modelsClaim" $.root }}}}
    {{- else if and $.component.perNode $values.persistence.enabled $values.persistence.hostPath }}
    - {name: {{ $name }}, hostPath: {path: {{ $values.persistence.hostPath }}/{{ $name }}, type: Directory}}
    {{- else if not (has $name $claims) }}
    - {name: {{ $name }}, emptyDir: {}}
    {{- end }}
    {{- end }}
    {{- if and .component.computes $values.models }}
    - name: models
      {{- toYaml $values.models | nindent 6 }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Requests and limits, with the GPU where one is asked for. */}}
{{- define "tandem.component.resources" -}}
{{- $values := index .root.Values .component.key }}
{{- $resources := deepCopy ($values.resources | default dict) }}
{{- if and .component.computes $values.gpu.enabled }}
{{- $gpu := dict $values.gpu.resource 1 }}
{{- $resources = merge $resources (dict "limits" $gpu) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
