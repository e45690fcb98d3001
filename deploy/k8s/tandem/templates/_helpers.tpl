{{/* The chart's name, and that of this release's resources. */}}
{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tandem.fullname" -}}
{{- $name := include "tandem.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tandem.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tandem.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tandem.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tandem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tandem.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The secrets of a place. Usage: include "tandem.tlsSecret" (dict "root" $ "place" "edge") */}}
{{- define "tandem.tlsSecret" -}}
{{- $security := .root.Values.security }}
{{- $given := (index $security .place).tlsSecret }}
{{- if and $security.certManager.enabled (not $given) }}
{{- printf "%s-%s-tls" (include "tandem.fullname" .root) .place }}
{{- else }}
{{- required (printf "security.%s.tlsSecret: must be set (or certManager.enabled, or insecure)" .place) $given }}
{{- end }}
{{- end }}

{{- define "tandem.keysSecret" -}}
{{- $given := (index .root.Values.security .place).keysSecret }}
{{- required (printf "security.%s.keysSecret: must be set (or security.insecure)" .place) $given }}
{{- end }}

{{- define "tandem.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A number as a setting is given: whole ones without exponent or point. */}}
{{- define "tandem.setting" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . | toString | quote }}{{ else }}{{ toString . | quote }}{{ end }}
{{- end }}
