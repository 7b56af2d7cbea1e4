{{/* What the pods of all components share. */}}

{{- define "specmesh.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int .Values.podSecurity.runAsUser }}
runAsGroup: {{ int .Values.podSecurity.runAsGroup }}
fsGroup: {{ int .Values.podSecurity.runAsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "specmesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Probes on the plaintext health port. A load is waited for by the startup probe; liveness asks for the process only. */}}
{{- define "specmesh.probes" -}}
startupProbe:
  grpc: {port: {{ include "specmesh.healthPort" . }}, service: {{ .startup }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (add (int .startupSeconds) 4) 5) }}
livenessProbe:
  grpc: {port: {{ include "specmesh.healthPort" . }}, service: live}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  grpc: {port: {{ include "specmesh.healthPort" . }}, service: {{ .ready }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* Where a pod may run: .root, .spec, .selector. Tolerations of GPU components are the default unless the pool has a list. */}}
{{- define "specmesh.placement" -}}
{{- $s := .spec -}}
{{- with $s.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $s.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $s.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $s.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := list -}}
{{- if hasKey $s "tolerations" -}}
{{- $tolerations = $s.tolerations -}}
{{- else if include "specmesh.hasGpu" $s -}}
{{- $tolerations = .root.Values.gpuTolerations -}}
{{- end -}}
{{- $tolerations = concat $tolerations (default list $s.extraTolerations) -}}
{{- if $tolerations }}
tolerations:
  {{- toYaml $tolerations | nindent 2 }}
{{- end }}
{{- $selector := .selector -}}
{{- with $s.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := deepCopy . }}
  {{- if not (hasKey $constraint "labelSelector") }}
  {{- $_ := set $constraint "labelSelector" (dict "matchLabels" ($selector | fromYaml)) }}
  {{- end }}
  - {{ toYaml $constraint | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Requests and limits, with the GPU's: .root, .kind, .spec. A pool's own `resources` stand instead of the default. */}}
{{- define "specmesh.resources" -}}
{{- $default := include "specmesh.defaultResources" . | fromYaml -}}
{{- $resources := deepCopy (ternary .spec.resources $default (hasKey .spec "resources")) -}}
{{- $gpu := default dict .spec.gpu -}}
{{- if $gpu.claim -}}
{{- $_ := set $resources "claims" (list (dict "name" "gpu")) -}}
{{- else if gt (int $gpu.count) 0 -}}
{{- $limits := default dict $resources.limits -}}
{{- $_ := set $limits (default "nvidia.com/gpu" $gpu.resource) (int $gpu.count) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- if $resources }}
resources:
  {{- toYaml $resources | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Caches of libraries, on a volume: the root file system is read-only. */}}
{{- define "specmesh.env" -}}
- {name: HOME, value: /var/cache/specmesh}
- {name: XDG_CACHE_HOME, value: /var/cache/specmesh}
- {name: HF_HOME, value: /var/cache/specmesh/hub}
- {name: TRITON_CACHE_DIR, value: /var/cache/specmesh/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /var/cache/specmesh/inductor}
- {name: HF_HUB_DISABLE_TELEMETRY, value: "1"}
{{- $model := default dict .model -}}
{{- if not $model.hub }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- else if .root.Values.hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .root.Values.hubToken.existingSecret | quote }}, key: {{ .root.Values.hubToken.key | quote }}}
{{- end }}
{{- with .spec.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Volumes: .root, .name, .spec, .secret (of TLS), .modelName. */}}
{{- define "specmesh.volumes" -}}
- name: config
  configMap: {name: {{ .name }}}
- name: tmp
  emptyDir: {}
- name: cache
  emptyDir: {}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ .secret | quote }}, defaultMode: 288}
{{- end }}
{{- $model := default dict (index .root.Values.models (default "" .modelName)) }}
{{- if $model.pvc }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.pvc.claim | quote }}, readOnly: true}
{{- else if $model.image }}
- name: model
  image: {reference: {{ $model.image | quote }}, pullPolicy: IfNotPresent}
{{- end }}
{{- with .spec.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "specmesh.volumeMounts" -}}
- {name: config, mountPath: /etc/specmesh/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /var/cache/specmesh}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/specmesh/tls, readOnly: true}
{{- end }}
{{- $model := default dict (index .root.Values.models (default "" .modelName)) }}
{{- if or $model.pvc $model.image }}
- name: model
  mountPath: /srv/models/{{ .modelName }}
  readOnly: true
  {{- with (default dict $model.pvc).path }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .spec.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "specmesh.defaultResources" -}}
{{- $class := "model" -}}
{{- if include "specmesh.hasGpu" .spec -}}{{- $class = "gpu" -}}
{{- else if and (eq .kind "draft") (ne .spec.kind "hf") -}}{{- $class = "light" -}}
{{- end -}}
{{- toYaml (index .root.Values.defaultResources $class) -}}
{{- end -}}

{{/* Components with a GPU end the old pod first, so that no spare GPU is needed. */}}
{{- define "specmesh.rollingUpdate" -}}
{{- $gpu := eq (include "specmesh.hasGpu" .) "true" -}}
{{- $default := ternary (dict "maxSurge" 0 "maxUnavailable" 1) (dict "maxSurge" 1 "maxUnavailable" 0) $gpu -}}
{{- toYaml (mergeOverwrite $default (default dict .rollout)) -}}
{{- end -}}

{{/* A deployment's replicas and rollout. */}}
{{- define "specmesh.rollout" -}}
{{- $s := .spec -}}
{{- if not (default dict $s.autoscaling).enabled }}
replicas: {{ int (ternary $s.replicas 1 (hasKey $s "replicas")) }}
{{- end }}
strategy:
  type: RollingUpdate
  rollingUpdate:
    {{- include "specmesh.rollingUpdate" $s | nindent 4 }}
revisionHistoryLimit: 3
progressDeadlineSeconds: {{ add 120 (int .startupSeconds) }}
{{- end -}}

{{/* One service's pods: .root, .kind, .pool, .spec, .target, .startup, .startupSeconds, .drainSeconds, .preStopSeconds, .secret,
.config, .modelName. */}}
{{- define "specmesh.deployment" -}}
{{- $root := .root -}}
{{- $s := .spec -}}
{{- $name := include "specmesh.name" . -}}
{{- $selector := include "specmesh.selector" . -}}
{{- $service := dict "router" "specmesh.v1.RouterService" "verifier" "specmesh.v1.VerifierService" "draft" "specmesh.v1.DraftService" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels:
    {{- include "specmesh.labels" . | nindent 4 }}
data:
  config.toml: |
    {{- .config | trim | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "specmesh.labels" . | nindent 4 }}
spec:
  {{- include "specmesh.rollout" (dict "spec" $s "startupSeconds" .startupSeconds) | trim | nindent 2 }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "specmesh.labels" . | nindent 8 }}
        {{- with $s.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ .config | sha256sum | quote }}
        {{- with $s.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "specmesh.name" (dict "root" $root "kind" .kind) }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # Longer than the drain: what is left after it is cut by the service itself.
      terminationGracePeriodSeconds: {{ add (int .preStopSeconds) (int .drainSeconds) 15 }}
      securityContext:
        {{- include "specmesh.podSecurity" $root | nindent 8 }}
      {{- include "specmesh.placement" (dict "root" $root "spec" $s "selector" $selector) | trim | nindent 6 }}
      {{- if (default dict $s.gpu).claim }}
      resourceClaims:
        - {name: gpu, resourceClaimTemplateName: {{ $name }}}
      {{- end }}
      containers:
        - name: {{ .kind }}
          image: {{ include "specmesh.image" (dict "root" $root "target" .target "spec" $s) | quote }}
          imagePullPolicy: {{ $root.Values.imagePullPolicy }}
          args: [{{ .kind }}, --config, /etc/specmesh/config/config.toml]
          ports:
            - {name: grpc, containerPort: {{ include "specmesh.port" .kind }}}
            - {name: health, containerPort: {{ include "specmesh.healthPort" . }}}
            {{- with int $root.Values.telemetry.prometheusPort }}
            - {name: metrics, containerPort: {{ . }}}
            {{- end }}
          env:
            {{- include "specmesh.env" (dict "root" $root "spec" $s "model" (index $root.Values.models (default "" .modelName))) | nindent 12 }}
          {{- include "specmesh.probes" (dict "startup" .startup "ready" (index $service .kind) "startupSeconds" .startupSeconds) | nindent 10 }}
          {{- if int .preStopSeconds }}
          lifecycle:
            preStop:
              exec: {command: [sleep, {{ int .preStopSeconds | toString | quote }}]}
          {{- end }}
          {{- include "specmesh.resources" . | trim | nindent 10 }}
          securityContext:
            {{- include "specmesh.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            {{- include "specmesh.volumeMounts" (dict "root" $root "spec" $s "modelName" .modelName) | nindent 12 }}
            {{- if .moreMounts }}
            {{- .moreMounts | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "specmesh.volumes" (dict "root" $root "name" $name "spec" $s "secret" .secret "modelName" .modelName) | nindent 8 }}
        {{- if .moreVolumes }}
        {{- .moreVolumes | nindent 8 }}
        {{- end }}
{{- end -}}
