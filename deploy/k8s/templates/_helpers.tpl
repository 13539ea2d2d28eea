{{- define "xmtp.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "xmtp.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The labels that select one role's pods: (dict "root" $ "role" "reader"). They never change. */}}
{{- define "xmtp.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{/* A role's settings over the defaults, as YAML. */}}
{{- define "xmtp.role" -}}
{{- mustMergeOverwrite (deepCopy .root.Values.defaults) (deepCopy (get .root.Values.roles .role)) | toYaml -}}
{{- end -}}

{{- define "xmtp.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.prefix }}{{ .role }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}

{{- define "xmtp.serviceAccount" -}}
{{- if .settings.serviceAccount.create -}}
{{- default (printf "%s-%s" (include "xmtp.fullname" .root) .role) .settings.serviceAccount.name -}}
{{- else -}}
{{- default "default" .settings.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "xmtp.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "xmtp.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
Where Go begins to collect for dear life: 90 % of a pod's memory limit. What is resident
passes it by some percent, and with the limit itself would end the pod.
*/}}
{{- define "xmtp.goMemoryLimit" -}}
{{- $limit := kindIs "float64" . | ternary (int64 . | toString) (toString .) -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- $unit := regexFind "[A-Za-z]*$" $limit -}}
{{- if not (hasKey $units $unit) }}{{ fail (printf "the memory limit %s has the unit %s, expected Mi or Gi" $limit $unit) }}{{ end -}}
{{- mulf (trimSuffix $unit $limit | float64) (get $units $unit) 0.9 | floor | int64 -}}
{{- end -}}

{{/* The variables that come from Secrets: (dict "root" $ "role" role "settings" settings "secret" name of the chart's own). */}}
{{- define "xmtp.secretEnv" -}}
{{- $values := .root.Values -}}
{{- $own := .secret -}}
{{- if ne .role "gateway" }}
- name: XMTP_PRIMARY_URL
  valueFrom: {secretKeyRef: {name: {{ default $own $values.postgres.existingSecret }}, key: {{ not (empty $values.postgres.existingSecret) | ternary $values.postgres.primaryKey "primary-url" }}}}
{{- end }}
{{- if has .role (list "reader" "streamer") }}
{{- $key := "" }}
{{- if $values.postgres.existingSecret }}
{{- $key = default $values.postgres.replicaKey .settings.replicaKey }}
{{- else if .settings.replicaUrl }}
{{- $key = printf "%s-replica-url" .role }}
{{- else if $values.postgres.replicaUrl }}
{{- $key = "replica-url" }}
{{- end }}
{{- with $key }}
- name: XMTP_REPLICA_URL
  valueFrom: {secretKeyRef: {name: {{ default $own $values.postgres.existingSecret }}, key: {{ . }}}}
{{- end }}
{{- end }}
{{- if has .role (list "publisher" "streamer") }}
- name: XMTP_NATS_URL
  valueFrom: {secretKeyRef: {name: {{ default $own $values.nats.existingSecret }}, key: {{ not (empty $values.nats.existingSecret) | ternary $values.nats.urlKey "nats-url" }}}}
{{- end }}
{{- if and (ne .role "streamer") (or $values.chains.existingSecret $values.chains.value) }}
- name: XMTP_CHAINS
  valueFrom: {secretKeyRef: {name: {{ default $own $values.chains.existingSecret }}, key: {{ not (empty $values.chains.existingSecret) | ternary $values.chains.key "chains" }}}}
{{- end }}
{{- end -}}

{{/* What a role is told in plain variables. */}}
{{- define "xmtp.plainEnv" -}}
{{- $full := include "xmtp.fullname" .root -}}
{{- $roles := .root.Values.roles -}}
{{- $env := dict
  "XMTP_IDENTIFIER" (required "identifier is required: the stable name of this deployment, such as org.example.chat" .root.Values.identifier)
  (printf "XMTP_%s_LISTEN" (upper .role)) (printf ":%d" (int .settings.port))
  "XMTP_DRAIN_TIMEOUT" (printf "%ds" (int .root.Values.shutdown.drainSeconds))
  "XMTP_STOP_TIMEOUT" (printf "%ds" (int .root.Values.shutdown.stopSeconds))
  "XMTP_METRICS_LISTEN" (printf ":%d" (int .root.Values.telemetry.metricsPort))
  "XMTP_TRACE_RATIO" (toString .root.Values.telemetry.traceRatio)
  "XMTP_LOG_LEVEL" .root.Values.telemetry.logLevel -}}
{{- with .root.Values.telemetry.otlpEndpoint }}
{{- $_ := set $env "XMTP_OTLP_ENDPOINT" . }}
{{- end }}
{{- if eq .role "publisher" }}
{{- $_ := set $env "XMTP_MIGRATE" (.root.Values.migration.job | ternary "false" "true") }}
{{- end }}
{{- if eq .role "gateway" }}
{{- range $upstream := list "publisher" "reader" "streamer" }}
{{- $_ := set $env (printf "XMTP_%s_ENDPOINT" (upper $upstream)) (printf "%s-%s:%d" $full $upstream (int (get $roles $upstream).port)) }}
{{- end }}
{{- if .root.Values.tls.existingSecret }}
{{- $_ := set $env "XMTP_TLS_CERT_FILE" "/tls/tls.crt" }}
{{- $_ := set $env "XMTP_TLS_KEY_FILE" "/tls/tls.key" }}
{{- end }}
{{- if or .root.Values.ingress.enabled .root.Values.gatewayApi.enabled }}
{{- /* A proxy puts native gRPC and gRPC-Web on the same connections. */}}
{{- $_ := set $env "XMTP_GATEWAY_HTTP2" "http" }}
{{- end }}
{{- end }}
{{- $env = mustMergeOverwrite $env (deepCopy .root.Values.env) (deepCopy .settings.env) }}
{{- range $name, $value := $env }}
{{- /* Helm reads every number as a float: a large one would be written with an exponent. */}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value = int64 $value }}{{ end }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end -}}

{{/* Fails early, in words, when a connection is missing or a setting would have no effect. */}}
{{- define "xmtp.check" -}}
{{- if not (or .Values.postgres.existingSecret .Values.postgres.primaryUrl) }}{{ fail "PostgreSQL is missing: set postgres.existingSecret or postgres.primaryUrl" }}{{ end -}}
{{- $given := or .Values.postgres.primaryUrl .Values.postgres.replicaUrl }}
{{- $named := .Values.postgres.replicaKey }}
{{- range $role := list "publisher" "reader" "streamer" "gateway" }}
{{- $settings := include "xmtp.role" (dict "root" $ "role" $role) | fromYaml }}
{{- if and $settings.replicaUrl (ne $role "streamer") }}{{ fail (printf "the %s takes no replicaUrl: set postgres.replicaUrl, and roles.streamer.replicaUrl for streamers" $role) }}{{ end }}
{{- if and $settings.replicaKey (not (has $role (list "reader" "streamer"))) }}{{ fail (printf "the %s takes no replicaKey: it reads no replica" $role) }}{{ end }}
{{- $given = or $given $settings.replicaUrl }}
{{- $named = or $named $settings.replicaKey }}
{{- end }}
{{- if and .Values.postgres.existingSecret $given }}{{ fail "postgres.existingSecret has the URLs: name its keys in postgres.primaryKey, postgres.replicaKey and roles.streamer.replicaKey, and set no primaryUrl or replicaUrl" }}{{ end }}
{{- if and $named (not .Values.postgres.existingSecret) }}{{ fail "a replicaKey is a key of postgres.existingSecret: without it set replicaUrl" }}{{ end }}
{{- if not (or .Values.nats.existingSecret .Values.nats.url) }}{{ fail "NATS is missing: set nats.existingSecret or nats.url" }}{{ end -}}
{{- if and .Values.tls.existingSecret (not .Values.tls.host) }}{{ fail "tls.host is required with tls.existingSecret: the name in the certificate by which clients reach the gateway" }}{{ end -}}
{{- if and (not .Values.postgres.existingSecret) (contains "," .Values.postgres.replicaUrl) (not .Values.roles.streamer.replicaUrl) }}{{ fail "a streamer takes exactly one replica: set roles.streamer.replicaUrl beside the list in postgres.replicaUrl" }}{{ end -}}
{{- end -}}
