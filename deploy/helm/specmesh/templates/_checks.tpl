{{/* What a schema cannot say, or not in words that help. Each check writes a line for each fault: the field and what to do next.
All are said together. */}}
{{- define "specmesh.checks" -}}
{{- $root := . -}}
{{- $faults := list -}}
{{- range list "names" "models" "pools" "gpuTolerations" "tls" "callers" "telemetry" "metrics" "digests" "targets" -}}
{{- $faults = concat $faults (include (printf "specmesh.checks.%s" .) $root | include "specmesh.checks.lines" | fromJsonArray) -}}
{{- end -}}
{{- range $component := include "specmesh.components" . | fromYamlArray -}}
{{- $_ := set $component "root" $root -}}
{{- range list "model" "kind" "gpu" "tolerations" "resources" "env" "volumes" "metadata" "rollout" "scaling" "hub" "certificate" "config" "keys" -}}
{{- range include (printf "specmesh.checks.%s" .) $component | include "specmesh.checks.lines" | fromJsonArray -}}
{{- $faults = append $faults (printf "%s: %s" (include "specmesh.where" $component) .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "\n- %s\n" (uniq $faults | join "\n- ")) -}}
{{- end -}}
{{- end -}}

{{- define "specmesh.checks.lines" -}}
{{- splitList "\n" . | compact | toJson -}}
{{- end -}}

{{/* A component as its values name it: `router`, `verifiers main`, `drafts small`. */}}
{{- define "specmesh.where" -}}
{{- if .pool -}}{{ .kind }}s {{ .pool }}{{- else -}}{{ .kind }}{{- end -}}
{{- end -}}

{{- define "specmesh.checks.names" -}}
{{- $name := include "specmesh.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
fullnameOverride: services would be called {{ $name }}-..., but their names begin with a letter and have no dots; set one that does
{{- end }}
{{- end -}}

{{- define "specmesh.checks.models" -}}
{{- range $name, $model := .Values.models }}
{{- $sources := list }}
{{- range list "hub" "pvc" "image" "path" }}{{- if hasKey $model . }}{{- $sources = append $sources . }}{{- end }}{{- end }}
{{- if ne (len $sources) 1 }}
models {{ $name }}: has {{ default "no source" (join ", " $sources) }}; give it exactly one of hub, pvc, image and path
{{- end }}
{{- if and $model.image (semverCompare "<1.31.0-0" $.Capabilities.KubeVersion.Version) }}
models {{ $name }}: image volumes need Kubernetes 1.31 or newer, this is {{ $.Capabilities.KubeVersion.Version }}; bring the model by pvc
{{- end }}
{{- if has ".." (splitList "/" (default "" (default dict $model.pvc).path)) }}
models {{ $name }}: pvc.path is inside the claim and cannot contain ..
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.pools" -}}
{{- range $list := list "verifiers" "drafts" }}
{{- $names := list }}
{{- range index $.Values $list }}
{{- if has .name $names }}
{{ $list }} {{ .name }}: two pools have this name; each needs its own
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- end }}
{{- $models := list }}
{{- range .Values.verifiers }}{{- $models = append $models .model }}{{- end }}
{{- if gt (len (uniq $models)) 1 }}
verifiers: one release serves one model, not {{ uniq $models | join ", " }}; install another release for each other model
{{- end }}
{{- end -}}

{{/* A digest is also of dtype and quantisation: pools that hold a pinned model differently cannot all be right. */}}
{{- define "specmesh.checks.digests" -}}
{{- range $name, $model := .Values.models }}
{{- if $model.digest }}
{{- $forms := dict }}
{{- range concat $.Values.verifiers $.Values.drafts }}
{{- if eq (default "" .model) $name }}{{- $_ := set $forms (include "specmesh.form" .) .name }}{{- end }}
{{- end }}
{{- if gt (len $forms) 1 }}
models {{ $name }}: digest pins dtype and quantization too, but {{ values $forms | sortAlpha | join " and " }} hold this model differently; give each form an entry of its own
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.form" -}}
{{ default "auto" .dtype }} {{ default "unquantised" .quantization }}
{{- end -}}

{{/* All verifiers of a release have one law: sessions go from one to another. */}}
{{- define "specmesh.checks.targets" -}}
{{- $forms := dict }}
{{- range .Values.verifiers }}{{- $_ := set $forms (include "specmesh.form" .) .name }}{{- end }}
{{- if gt (len $forms) 1 }}
verifiers: {{ values $forms | sortAlpha | join " and " }} differ in dtype or quantization, which makes them different models; a release serves one, so set the same for all
{{- end }}
{{- end -}}

{{- define "specmesh.checks.telemetry" -}}
{{- $port := int .Values.telemetry.prometheusPort }}
{{- if and $port (lt $port 1024) }}
telemetry.prometheusPort: {{ $port }} is a privileged port, and pods do not run as root; take one above 1023, such as 9464
{{- end }}
{{- if has $port (list 50050 50051 50052 50060) }}
telemetry.prometheusPort: {{ $port }} is a port of the services themselves; take another one, such as 9464
{{- end }}
{{- range $key, $_ := .Values.telemetry.podMonitor.labels }}
{{- if hasKey (include "specmesh.release" $ | fromYaml) $key }}
telemetry.podMonitor.labels: {{ $key }} is set by the chart; take another key
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.model" -}}
{{- $model := .spec.model }}
{{- if and $model (not (hasKey .root.Values.models $model)) }}
model: models has no {{ $model }}; {{ if .root.Values.models }}it has {{ keys .root.Values.models | sortAlpha | join ", " }}{{ else }}add it there{{ end }}
{{- end }}
{{- end -}}

{{/* What each kind of draft takes. */}}
{{- define "specmesh.checks.kind" -}}
{{- $s := .spec }}
{{- if lt (include "specmesh.quantity" (trimSuffix "B" (default "1GiB" $s.kvMemory)) | float64) 1.0 }}
kvMemory: {{ $s.kvMemory }} is less than a byte; say how much memory keys and values may take, as in 4GiB
{{- end }}
{{- if eq .kind "draft" }}
{{- if and (ne $s.kind "lookup") (not $s.model) }}
model: kind {{ $s.kind }} needs one; name one of models
{{- end }}
{{- if and (eq $s.kind "lookup") $s.model }}
model: kind lookup has none, it finds its tokens in the session's own text; leave model out
{{- end }}
{{- if ne $s.kind "hf" }}
{{- range list "dtype" "quantization" }}{{- if hasKey $s . }}
{{ . }}: kind {{ $s.kind }} has no weights to hold in it; leave it out
{{- end }}{{- end }}
{{- if $s.kvMemory }}
kvMemory: kind {{ $s.kind }} keeps no keys and values; leave it out
{{- end }}
{{- if include "specmesh.hasGpu" $s }}
gpu: kind {{ $s.kind }} runs on a CPU; leave gpu out
{{- end }}
{{- end }}
{{- if eq $s.kind "table" }}
{{- include "specmesh.checks.tableFile" (default dict (index .root.Values.models (default "" $s.model))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A table is a file, and not a folder. */}}
{{- define "specmesh.checks.tableFile" -}}
{{- if or .hub .image (and .pvc (not .pvc.path)) }}
model: a table is one file; bring it as models.NAME: {pvc: {claim: ..., path: FILE.npz}}, or by path
{{- end }}
{{- end -}}

{{- define "specmesh.checks.hub" -}}
{{- $policy := .root.Values.networkPolicy }}
{{- $model := default dict (index .root.Values.models (default "" .spec.model)) }}
{{- if and $model.hub $policy.enabled (not $policy.allowHub) }}
model: comes from the hub, which networkPolicy does not let it reach; set networkPolicy.allowHub, or bring the model by pvc or image
{{- end }}
{{- end -}}
