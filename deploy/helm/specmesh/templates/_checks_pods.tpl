{{/* Checks of what becomes a pod's place, its devices and its volumes. Each gets one component: .root, .kind, .pool, .spec. */}}

{{- define "specmesh.checks.gpu" -}}
{{- $s := .spec }}
{{- $gpu := default dict $s.gpu }}
{{- if and $gpu.claim (or (hasKey $gpu "count") $gpu.resource) }}
gpu: count and resource ask for an extended resource, claim for dynamic resource allocation; keep one of both ways
{{- else if and (hasKey $s "gpu") (not $gpu.claim) (not (hasKey $gpu "count")) }}
gpu: needs count (0 says that the pool is meant for CPUs), or claim
{{- end }}
{{- if and $gpu.claim (semverCompare "<1.34.0-0" .root.Capabilities.KubeVersion.Version) }}
gpu: claim needs Kubernetes 1.34 or newer, this is {{ .root.Capabilities.KubeVersion.Version }}; use count
{{- end }}
{{- if and $s.quantization (eq .kind "verifier") (gt (int (include "specmesh.numGpus" $s)) 1) }}
quantization: a quantised model cannot be divided among several GPUs; set gpu.count to 1, or leave quantization out
{{- end }}
{{- if and $s.quantization (eq (default "auto" $s.dtype) "float32") }}
dtype: float32 cannot be kept with quantization {{ $s.quantization }}; take bfloat16, float16 or auto
{{- end }}
{{- if and $s.quantization (not (include "specmesh.hasGpu" $s)) (not $s.image) }}
quantization: needs a gpu, as the cpu image has no bitsandbytes; set gpu, or give the pool an image that has it
{{- end }}
{{- if and (not (hasKey $s "gpu")) (ne .kind "router") (include "specmesh.asksForGpuNode" $s) }}
gpu: is missing, while {{ include "specmesh.asksForGpuNode" $s }} asks for a node with GPUs; set gpu: {count: 1}, or gpu: {count: 0} for a pool of CPUs there
{{- end }}
{{- end -}}

{{/* Which of a pool's own values asks for a node with GPUs. */}}
{{- define "specmesh.asksForGpuNode" -}}
{{- $found := list -}}
{{- range $key, $value := .nodeSelector -}}
{{- if and (hasPrefix "nvidia.com/" $key) (ne $value "false") -}}{{- $found = append $found (printf "nodeSelector %s" $key) -}}{{- end -}}
{{- end -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list (default dict .affinity) -}}
{{- range $term := $required -}}{{- range $term.matchExpressions -}}
{{- if and (hasPrefix "nvidia.com/" .key) (has .operator (list "In" "Exists" "Gt")) -}}{{- $found = append $found (printf "affinity %s" .key) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- range concat (default list .tolerations) (default list .extraTolerations) -}}
{{- if hasPrefix "nvidia.com/" (default "" .key) -}}{{- $found = append $found (printf "toleration %s" .key) -}}{{- end -}}
{{- end -}}
{{- if hasPrefix "nvidia" (default "" .runtimeClassName) -}}{{- $found = append $found "runtimeClassName" -}}{{- end -}}
{{- if $found -}}{{- first $found -}}{{- end -}}
{{- end -}}

{{- define "specmesh.checks.tolerations" -}}
{{- $component := . }}
{{- range list "tolerations" "extraTolerations" }}
{{- include "specmesh.checks.tolerationList" (dict "root" $component.root "name" . "list" (index $component.spec .)) }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.gpuTolerations" -}}
{{- include "specmesh.checks.tolerationList" (dict "root" . "name" "gpuTolerations" "list" .Values.gpuTolerations) }}
{{- end -}}

{{/* As Kubernetes reads them: .root, .name, .list. */}}
{{- define "specmesh.checks.tolerationList" -}}
{{- $version := .root.Capabilities.KubeVersion.Version }}
{{- $name := .name }}
{{- range $index, $each := .list }}
{{- $where := printf "%s[%d]" $name $index }}
{{- $operator := default "Equal" .operator }}
{{- if and (eq $operator "Exists") .value }}
{{ $where }}: operator Exists takes no value; leave value out, or use operator Equal
{{- end }}
{{- if and (ne $operator "Exists") (not .key) }}
{{ $where }}: has no key, which only operator Exists may leave out (it then tolerates everything)
{{- end }}
{{- if and (hasKey . "tolerationSeconds") (ne (default "" .effect) "NoExecute") }}
{{ $where }}: tolerationSeconds has a meaning with effect NoExecute only
{{- end }}
{{- if has $operator (list "Lt" "Gt") }}
{{- if semverCompare "<1.35.0-0" $version }}
{{ $where }}: operator {{ $operator }} needs Kubernetes 1.35 or newer and its feature gate TaintTolerationComparisonOperators, this is {{ $version }}
{{- end }}
{{- if not (regexMatch "^-?(0|[1-9][0-9]*)$" (default "" .value)) }}
{{ $where }}: operator {{ $operator }} compares whole numbers; value is "{{ .value }}"
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.resources" -}}
{{- $resources := default dict .spec.resources }}
{{- range $part := list "requests" "limits" }}
{{- range $name, $_ := index $resources $part }}
{{- if regexMatch "^nvidia[.]com/|(^|[./])gpu" $name }}
resources.{{ $part }}: {{ $name }} stands under gpu, which also chooses image, device and toleration; write gpu: {count: 1, resource: {{ $name }}}
{{- end }}
{{- end }}
{{- end }}
{{- range $part := list "requests" "limits" }}
{{- with (index (default dict $resources) $part | default dict).memory }}
{{- if lt (include "specmesh.quantity" . | float64) 1048576.0 }}
resources.{{ $part }}: memory {{ . }} is {{ include "specmesh.quantity" . }} bytes; write a unit, such as 8Gi
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $limit := $resources.limits }}
{{- $request := index (default dict $resources.requests) $name }}
{{- if and $request (gt (include "specmesh.quantity" $request | float64) (include "specmesh.quantity" $limit | float64)) }}
resources: requests {{ $request }} of {{ $name }}, more than its limit of {{ $limit }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Variables of the pool's own beside those of the chart. */}}
{{- define "specmesh.checks.env" -}}
{{- $model := index .root.Values.models (default "" .spec.model) }}
{{- $ours := list }}
{{- range include "specmesh.env" (dict "root" .root "spec" dict "model" $model) | fromYamlArray }}{{- $ours = append $ours .name }}{{- end }}
{{- $names := list }}
{{- range .spec.env }}
{{- if has .name $ours }}
env {{ .name }}: the chart sets it; leave it out
{{- else if has .name $names }}
env {{ .name }}: two entries have this name
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- end -}}

{{/* Volumes of the pool's own beside those of the chart. */}}
{{- define "specmesh.checks.volumes" -}}
{{- $ours := list "config" "tmp" "cache" "tls" "mesh-tls" "tokens" "model" "shm" }}
{{- $names := list }}
{{- range .spec.volumes }}
{{- if has .name $ours }}
volumes {{ .name }}: the chart has a volume of this name; take another one
{{- else if has .name $names }}
volumes {{ .name }}: two volumes have this name
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $paths := list "/tmp" "/dev/shm" "/var/cache/specmesh" "/etc/specmesh/config" "/etc/specmesh/tls" "/etc/specmesh/mesh-tls" "/etc/specmesh/tokens" }}
{{- range .spec.volumeMounts }}
{{- if not (has .name (concat $names $ours)) }}
volumeMounts {{ .name }}: there is no volume of this name; add it to volumes
{{- end }}
{{- if has .mountPath $paths }}
volumeMounts {{ .name }}: something is mounted at {{ .mountPath }} already; take another path
{{- end }}
{{- $paths = append $paths .mountPath }}
{{- end }}
{{- end -}}

{{/* Labels and annotations by which the chart itself finds and renews pods. */}}
{{- define "specmesh.checks.metadata" -}}
{{- range $key, $_ := .spec.podLabels }}
{{- if or (hasPrefix "app.kubernetes.io/" $key) (hasPrefix "specmesh.dev/" $key) (eq $key "helm.sh/chart") }}
podLabels: {{ $key }} is set by the chart; take another key
{{- end }}
{{- end }}
{{- if hasKey (default dict .spec.podAnnotations) "checksum/config" }}
podAnnotations: checksum/config is set by the chart; take another key
{{- end }}
{{- end -}}

{{- define "specmesh.checks.rollout" -}}
{{- $rollout := include "specmesh.rollingUpdate" .spec | fromYaml }}
{{- if and (regexMatch "^0+%?$" (toString $rollout.maxSurge)) (regexMatch "^0+%?$" (toString $rollout.maxUnavailable)) }}
rollout: maxSurge and maxUnavailable are both 0, so that no pod could ever be replaced; set maxSurge: 1 (a spare place) or maxUnavailable: 1
{{- end }}
{{- end -}}
