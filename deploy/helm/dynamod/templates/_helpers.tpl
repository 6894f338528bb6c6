{{- define "dynamod.name" -}}
{{- if contains "dynamod" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-dynamod" (.Release.Name | trunc 32) }}{{ end -}}
{{- end -}}

{{- define "dynamod.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "dynamod.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end -}}
{{- end -}}

{{- define "dynamod.selector" -}}
dynamod.dev/graph: {{ include "dynamod.name" . }}
{{- end -}}

{{- define "dynamod.labels" -}}
{{ include "dynamod.selector" . }}
app.kubernetes.io/name: dynamod
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* What all pods have: (dict "root" $ "env" LIST) */ -}}
{{- define "dynamod.env" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: DYNAMOD_NODE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- if eq .root.Values.requests "tcp" }}
- {name: DYNAMOD_TCP_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: DYNAMOD_TCP_PORTS, value: "{{ .root.Values.ports.firstRequest }}-{{ .root.Values.ports.lastRequest }}"}
{{- else }}
- {name: NATS_SERVER, value: {{ .root.Values.nats.server | quote }}}
{{- include "dynamod.auth" (dict "name" "NATS_AUTH" "secret" .root.Values.nats.authSecretName) }}
{{- if .root.Values.nats.tlsSecretName }}
- {name: NATS_TLS_CA, value: /etc/dynamod/nats/ca.crt}
- {name: NATS_TLS_CERT, value: /etc/dynamod/nats/tls.crt}
- {name: NATS_TLS_KEY, value: /etc/dynamod/nats/tls.key}
{{- end }}
{{- end }}
- {name: DYNAMOD_DISCOVERY, value: {{ .root.Values.discovery }}}
{{- if eq .root.Values.discovery "etcd" }}
- {name: ETCD_ENDPOINTS, value: {{ .root.Values.etcd.endpoints | quote }}}
{{- include "dynamod.auth" (dict "name" "ETCD_AUTH" "secret" .root.Values.etcd.authSecretName) }}
{{- if .root.Values.etcd.tlsSecretName }}
- {name: ETCD_AUTH_CA, value: /etc/dynamod/etcd/ca.crt}
- {name: ETCD_AUTH_CLIENT_CERT, value: /etc/dynamod/etcd/tls.crt}
- {name: ETCD_AUTH_CLIENT_KEY, value: /etc/dynamod/etcd/tls.key}
{{- end }}
{{- end }}
- {name: DYNAMOD_KUBERNETES_GRAPH, value: {{ include "dynamod.name" .root }}}
- {name: DYN_SYSTEM_HOST, value: "0.0.0.0"}
- {name: DYN_SYSTEM_PORT, value: "{{ .root.Values.ports.probes }}"}
- {name: HOME, value: /home/dynamod}
{{- if .root.Values.security.tlsSecretName }}
- {name: DYN_TCP_TLS_CA_CERT_PATH, value: /etc/dynamod/tls/ca.crt}
- {name: DYN_TCP_TLS_CERT_PATH, value: /etc/dynamod/tls/tls.crt}
- {name: DYN_TCP_TLS_KEY_PATH, value: /etc/dynamod/tls/tls.key}
{{- $mode := include "dynamod.tlsMode" .root }}
{{- if ne $mode "require" }}
- {name: DYNAMOD_TCP_TLS, value: {{ $mode | quote }}}
{{- end }}
{{- with .root.Values.security.tlsServerName }}
- {name: DYN_TCP_TLS_SERVER_NAME, value: {{ . | quote }}}
{{- end }}
{{- with .root.Values.security.tlsRevokedKey }}
- {name: DYNAMOD_TCP_TLS_CRL, value: /etc/dynamod/tls/{{ . }}}
{{- end }}
{{- end }}
{{- if .root.Values.security.secretName }}
- {name: DYNAMOD_CLUSTER_SECRET, valueFrom: {secretKeyRef: {name: {{ .root.Values.security.secretName }}, key: secret}}}
- {name: DYNAMOD_TRUST, value: require}
{{- end }}
{{- if .root.Values.cache.enabled }}
- {name: HF_HOME, value: {{ .root.Values.cache.mountPath }}}
{{- end }}
{{- with .root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* YAML reads a bare off as false. */ -}}
{{- define "dynamod.tlsMode" -}}
{{- if not .Values.security.tlsMode }}off{{ else }}{{ .Values.security.tlsMode }}{{ end -}}
{{- end -}}

{{- /* User and password of a broker: (dict "name" PREFIX "secret" NAME) */ -}}
{{- define "dynamod.auth" -}}
{{- if .secret }}
- {name: {{ .name }}_USERNAME, valueFrom: {secretKeyRef: {name: {{ .secret }}, key: username}}}
- {name: {{ .name }}_PASSWORD, valueFrom: {secretKeyRef: {name: {{ .secret }}, key: password}}}
{{- end }}
{{- end -}}

{{- define "dynamod.mounts" -}}
- {name: run, mountPath: /tmp}
- {name: home, mountPath: /home/dynamod}
{{- if .Values.security.tlsSecretName }}
- {name: tls, mountPath: /etc/dynamod/tls, readOnly: true}
{{- end }}
{{- if and (eq .Values.discovery "etcd") .Values.etcd.tlsSecretName }}
- {name: etcd, mountPath: /etc/dynamod/etcd, readOnly: true}
{{- end }}
{{- if and (eq .Values.requests "nats") .Values.nats.tlsSecretName }}
- {name: nats, mountPath: /etc/dynamod/nats, readOnly: true}
{{- end }}
{{- if .Values.cache.enabled }}
- {name: cache, mountPath: {{ .Values.cache.mountPath }}}
{{- end }}
{{- end -}}

{{- define "dynamod.volumes" -}}
- {name: run, emptyDir: {}}
- {name: home, emptyDir: {}}
{{- if .Values.security.tlsSecretName }}
- {name: tls, secret: {secretName: {{ .Values.security.tlsSecretName }}}}
{{- end }}
{{- if and (eq .Values.discovery "etcd") .Values.etcd.tlsSecretName }}
- {name: etcd, secret: {secretName: {{ .Values.etcd.tlsSecretName }}}}
{{- end }}
{{- if and (eq .Values.requests "nats") .Values.nats.tlsSecretName }}
- {name: nats, secret: {secretName: {{ .Values.nats.tlsSecretName }}}}
{{- end }}
{{- if .Values.cache.enabled }}
- {name: cache, persistentVolumeClaim: {claimName: {{ .Values.cache.existingClaim | default (printf "%s-cache" (include "dynamod.name" .)) }}}}
{{- end }}
{{- end -}}

{{- define "dynamod.probes" -}}
startupProbe:
  httpGet: {path: /health/ready, port: probes}
  periodSeconds: {{ .Values.startup.periodSeconds }}
  failureThreshold: {{ .Values.startup.failureThreshold }}
livenessProbe:
  httpGet: {path: /health/live, port: probes}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /health/ready, port: probes}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{- define "dynamod.secure" -}}
{{- if not (or .Values.security.secretName .Values.security.tlsSecretName .Values.security.allowNone) -}}
{{- fail "security: set secretName or tlsSecretName, or allowNone: true where every pod of the network may send requests" -}}
{{- end -}}
{{- if and .Values.security.tlsSecretName (not .Values.security.secretName) (not .Values.security.allowNone) -}}
{{- if ne (include "dynamod.tlsMode" .) "require" -}}
{{- fail (printf "security.tlsMode: with %s pods take requests without a certificate, so set secretName, too, or allowNone: true" (include "dynamod.tlsMode" .)) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "tlsServerName" "tlsRevokedKey" -}}
{{- if and (get $.Values.security $key) (not $.Values.security.tlsSecretName) -}}
{{- fail (printf "security.%s: goes with tlsSecretName, the secret of the certificates" $key) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.requests "nats" -}}
{{- if not .Values.nats.server -}}
{{- fail "nats.server: requests is nats, so name the server, as in nats://nats:4222" -}}
{{- end -}}
{{- if not (or .Values.security.secretName .Values.security.allowNone) -}}
{{- fail "security.secretName: requests over NATS are signed with it; tlsSecretName is for TCP between pods" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.discovery "etcd") (not .Values.etcd.endpoints) -}}
{{- fail "etcd.endpoints: discovery is etcd, so name the members, as in etcd:2379" -}}
{{- end -}}
{{- end -}}
