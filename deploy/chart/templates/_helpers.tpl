{{/* Names, labels, and the parts that several objects share. Most take (dict "root" $ "role" "prefill"). */}}

{{- define "octavo.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "octavo.name" -}}
{{- printf "%s-%s" (include "octavo.fullname" .root) .role -}}
{{- end -}}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: octavo
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "octavo.metadata" -}}
name: {{ include "octavo.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "octavo.labels" . | nindent 2 }}
{{- end -}}

{{- define "octavo.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := $image.repositories.router -}}
{{- if ne .role "router" -}}
{{- $repository = ternary $image.repositories.gpuWorker $image.repositories.cpuWorker (gt (int (get .root.Values .role).gpu.count) 0) -}}
{{- end -}}
{{- if $image.registry }}{{ trimSuffix "/" $image.registry }}/{{ end -}}
{{ $repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}

{{/* What the kubelet waits before it kills: preStop, the longest stream, a margin. */}}
{{- define "octavo.terminationGraceS" -}}
{{- $preStop := ternary (int .root.Values.drain.routerPreStopS) 0 (eq .role "router") -}}
{{- add $preStop (int .root.Values.longestStreamS) (int .root.Values.drain.marginS) -}}
{{- end -}}

{{- define "octavo.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "octavo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What every pod says of where it runs; (dict "root" $ "role" ... "spec" .Values.prefill) */}}
{{- define "octavo.placement" -}}
serviceAccountName: {{ include "octavo.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .spec.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .spec.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .spec.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spec.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spec.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "octavo.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
terminationGracePeriodSeconds: {{ include "octavo.terminationGraceS" . }}
securityContext:
  {{- include "octavo.podSecurity" . | nindent 2 }}
{{- end -}}

{{/* Standard gRPC health: "" is liveness, the role's service is readiness. */}}
{{- define "octavo.probes" -}}
{{- $period := int .root.Values.probes.periodS -}}
startupProbe:
  {{- include "octavo.probe" (dict "root" .root "role" .role "port" .port "service" "" "timeoutS" 3) | nindent 2 }}
  periodSeconds: {{ $period }}
  failureThreshold: {{ max 1 (div (int .root.Values.probes.startupS) $period) }}
readinessProbe:
  {{- include "octavo.probe" (dict "root" .root "role" .role "port" .port "service" .service "timeoutS" 3) | nindent 2 }}
  periodSeconds: {{ $period }}
  failureThreshold: 2
livenessProbe:
  {{- include "octavo.probe" (dict "root" .root "role" .role "port" .port "service" "" "timeoutS" 5) | nindent 2 }}
  periodSeconds: {{ mul 2 $period }}
  failureThreshold: 3
{{- end -}}

{{/* The kubelet's own gRPC probe speaks no TLS: encrypted routers are asked at a socket in the pod. A
process has to start for it, which on a busy node takes its time. */}}
{{- define "octavo.probe" -}}
{{- $tls := .root.Values.tls -}}
{{- $secret := ternary $tls.secretName $tls.internalSecretName (eq .role "router") -}}
{{- if $secret -}}
exec:
  command:
    - octavo
    - probe
    - --service={{ .service }}
    {{- if eq .role "router" }}
    - --address={{ include "octavo.routerSocket" . }}
    {{- else }}
    - --address=localhost:{{ .port }}
    - --tls-name=octavo
    - --tls-ca-file=/etc/octavo/internal-tls/ca.crt
    - --tls-cert-file=/etc/octavo/internal-tls/tls.crt
    - --tls-key-file=/etc/octavo/internal-tls/tls.key
    {{- end }}
timeoutSeconds: 10
{{- else -}}
grpc:
  port: {{ .port }}
  {{- with .service }}
  service: {{ . }}
  {{- end }}
timeoutSeconds: {{ .timeoutS }}
{{- end -}}
{{- end -}}

{{- define "octavo.routerSocket" -}}
unix:/tmp/router.sock
{{- end -}}

{{- define "octavo.listenHost" -}}
{{- ternary "[::]" "0.0.0.0" .Values.ipv6 -}}
{{- end -}}

{{- define "octavo.modelVolume" -}}
- name: model
  {{- $volume := .root.Values.model.volume }}
  {{- if $volume.csi }}
  csi:
    readOnly: true
    {{- toYaml $volume.csi | nindent 4 }}
  {{- else if not $volume.persistentVolumeClaim }}
  {{- fail "model.volume.persistentVolumeClaim and model.volume.csi are both null: where is the model?" }}
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ $volume.persistentVolumeClaim.claimName }}
    readOnly: true
  {{- end }}
{{- end -}}

{{- define "octavo.modelMount" -}}
- name: model
  mountPath: {{ .root.Values.model.volume.mountPath }}
  readOnly: true
{{- end -}}

{{/* Redis: the setting, what it needs of Secrets, and the CA's folder. */}}
{{- define "octavo.redisEnv" -}}
{{- $redis := .root.Values.redis -}}
{{- if ne $redis.mode "none" -}}
{{- with $redis.passwordSecret.name }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $redis.passwordSecret.key }}
{{- end }}
- name: OCTAVO_REDIS_URL
  {{- if and (eq $redis.mode "external") $redis.external.urlSecret.name }}
  valueFrom:
    secretKeyRef:
      name: {{ $redis.external.urlSecret.name }}
      key: {{ $redis.external.urlSecret.key }}
  {{- else }}
  value: {{ include "octavo.redisUrl" .root | quote }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "octavo.redisUrl" -}}
{{- $redis := .Values.redis -}}
{{- $url := printf "redis://%s:6379" (include "octavo.name" (dict "root" . "role" "redis")) -}}
{{- $user := "" -}}
{{- if eq $redis.mode "external" -}}
{{- $url = $redis.external.url -}}
{{- $user = $redis.external.username -}}
{{- end -}}
{{- $scheme := index (splitList "://" $url) 0 -}}
{{- $rest := index (splitList "://" $url) 1 -}}
{{- if $redis.passwordSecret.name -}}
{{- $rest = printf "%s:$(REDIS_PASSWORD)@%s" $user $rest -}}
{{- else if $user -}}
{{- $rest = printf "%s@%s" $user $rest -}}
{{- end -}}
{{- if and (eq $redis.mode "external") $redis.external.caSecret -}}
{{- $rest = printf "%s%sssl_ca_certs=/etc/octavo/redis/ca.crt" $rest (ternary "&" "?" (contains "?" $rest)) -}}
{{- end -}}
{{- printf "%s://%s" $scheme $rest -}}
{{- end -}}

{{/* Secrets that routers and workers mount; (dict "root" $ "role" ...) */}}
{{- define "octavo.secretVolumes" -}}
{{- $values := .root.Values -}}
{{- if and $values.tls.secretName (eq .role "router") }}
- name: tls
  secret:
    secretName: {{ $values.tls.secretName }}
    defaultMode: 0440
{{- end }}
{{- with $values.tls.internalSecretName }}
- name: internal-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if and (eq $values.redis.mode "external") $values.redis.external.caSecret }}
- name: redis-ca
  secret:
    secretName: {{ $values.redis.external.caSecret }}
    defaultMode: 0440
{{- end }}
{{- if and $values.cacheSecret.secretName (eq .role "router") }}
- name: cache-secret
  secret:
    secretName: {{ $values.cacheSecret.secretName }}
    defaultMode: 0440
{{- end }}
{{- if and $values.apiKeys.secretName (eq .role "router") }}
- name: api-keys
  secret:
    secretName: {{ $values.apiKeys.secretName }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "octavo.secretMounts" -}}
{{- $values := .root.Values -}}
{{- if and $values.tls.secretName (eq .role "router") }}
- name: tls
  mountPath: /etc/octavo/tls
  readOnly: true
{{- end }}
{{- if $values.tls.internalSecretName }}
- name: internal-tls
  mountPath: /etc/octavo/internal-tls
  readOnly: true
{{- end }}
{{- if and (eq $values.redis.mode "external") $values.redis.external.caSecret }}
- name: redis-ca
  mountPath: /etc/octavo/redis
  readOnly: true
{{- end }}
{{- if and $values.cacheSecret.secretName (eq .role "router") }}
- name: cache-secret
  mountPath: /etc/octavo/cache
  readOnly: true
{{- end }}
{{- if and $values.apiKeys.secretName (eq .role "router") }}
- name: api-keys
  mountPath: /etc/octavo/api
  readOnly: true
{{- end }}
{{- end -}}

{{/* A port without a certificate is opened by --insecure alone. */}}
{{- define "octavo.tlsArgs" -}}
{{- $tls := .root.Values.tls -}}
{{- if and $tls.secretName (eq .role "router") }}
- --tls-cert-file=/etc/octavo/tls/tls.crt
- --tls-key-file=/etc/octavo/tls/tls.key
- --private-address={{ include "octavo.routerSocket" . }}
{{- if $tls.clientCa }}
- --tls-client-ca-file=/etc/octavo/tls/ca.crt
{{- end }}
{{- end }}
{{- if $tls.internalSecretName }}
- --internal-tls-dir=/etc/octavo/internal-tls
{{- end }}
{{- if not (ternary $tls.secretName $tls.internalSecretName (eq .role "router")) }}
- --insecure
{{- end }}
{{- end -}}

{{- define "octavo.metricsArgs" -}}
{{- if .root.Values.metrics.enabled }}
- --metrics-address={{ include "octavo.listenHost" .root }}:{{ .root.Values.metrics.port }}
{{- end }}
{{- end -}}

{{/* Metrics have the certificates of the inside, a router without those the one that clients see. */}}
{{- define "octavo.metricsScheme" -}}
{{- $tls := .root.Values.tls -}}
{{- ternary "https" "http" (or (not (empty $tls.internalSecretName)) (and (eq .role "router") (not (empty $tls.secretName)))) -}}
{{- end -}}

{{- define "octavo.podAnnotations" -}}
{{- $annotations := deepCopy .spec.podAnnotations -}}
{{- if .root.Values.metrics.enabled -}}
{{- $annotations = merge $annotations (dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .root.Values.metrics.port) "prometheus.io/scheme" (include "octavo.metricsScheme" .)) -}}
{{- end -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
