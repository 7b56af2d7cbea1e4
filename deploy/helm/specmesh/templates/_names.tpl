{{/* Names and labels. Every name fits 63 characters: 28 + 10 + 24. */}}

{{- define "specmesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 28 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 28 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 28 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of one component: .root, .kind (router, verifier, draft), .pool. */}}
{{- define "specmesh.name" -}}
{{- $base := include "specmesh.fullname" .root -}}
{{- if .pool -}}{{- printf "%s-%s-%s" $base .kind .pool -}}{{- else -}}{{- printf "%s-%s" $base .kind -}}{{- end -}}
{{- end -}}

{{- define "specmesh.release" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "specmesh.selector" -}}
{{ include "specmesh.release" .root }}
app.kubernetes.io/component: {{ .kind }}
{{- if .pool }}
specmesh.dev/pool: {{ .pool | quote }}
{{- end }}
{{- end -}}

{{- define "specmesh.labels" -}}
{{ include "specmesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* An address as routers resolve it: every pod behind a headless name. */}}
{{- define "specmesh.address" -}}
{{- printf "dns:///%s.%s.svc:%s" (include "specmesh.name" .) .root.Release.Namespace (include "specmesh.port" .kind) -}}
{{- end -}}

{{- define "specmesh.port" -}}
{{- if eq . "router" -}}50050{{- else if eq . "verifier" -}}50051{{- else -}}50052{{- end -}}
{{- end -}}
{{- define "specmesh.healthPort" -}}50060{{- end -}}

{{/* The collector's port. */}}
{{- define "specmesh.otlpPort" -}}{{ regexFind "[0-9]+/?$" .Values.telemetry.otlpEndpoint | trimSuffix "/" | int }}{{- end -}}

{{/* Names in certificates. */}}
{{- define "specmesh.routerIdentity" -}}
{{- default (printf "%s-router.%s.svc" (include "specmesh.fullname" .) .Release.Namespace) .Values.tls.routerIdentity -}}
{{- end -}}
{{- define "specmesh.verifierName" -}}
{{- default (printf "%s-verifier.%s.svc" (include "specmesh.fullname" .) .Release.Namespace) .Values.tls.verifierName -}}
{{- end -}}
{{- define "specmesh.draftName" -}}
{{- $tls := default dict .spec.tls -}}
{{- default (printf "%s.%s.svc" (include "specmesh.name" .) .root.Release.Namespace) $tls.serverName -}}
{{- end -}}

{{/* An image: .root, .target, and .spec.image where a pool has its own. */}}
{{- define "specmesh.image" -}}
{{- $image := mergeOverwrite (dict) (deepCopy (index .root.Values.images .target)) (default dict .spec.image) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* GPUs of one pod: a verifier divides its model among them. */}}
{{- define "specmesh.numGpus" -}}
{{- $gpu := default dict .gpu -}}
{{- if $gpu.claim -}}{{ int (default 1 $gpu.claim.count) }}{{- else -}}{{ int (default 0 $gpu.count) }}{{- end -}}
{{- end -}}

{{/* "true" where a component runs on a GPU. */}}
{{- define "specmesh.hasGpu" -}}
{{- $gpu := default dict .gpu -}}
{{- if or $gpu.claim (gt (int $gpu.count) 0) -}}true{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes, or memory without its B, as a number. */}}
{{- define "specmesh.quantity" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "ki" 1024.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $unit $text | float64) (index $factors $unit) -}}
{{- end -}}

{{/* Over what a rate is taken: four scrapes, so that one that is missed does not matter, and a minute at least. */}}
{{- define "specmesh.rateWindow" -}}
{{- $interval := .Values.telemetry.podMonitor.interval -}}
{{- $seconds := mulf (regexFind "^[0-9]+" $interval | float64) (index (dict "ms" 0.001 "s" 1.0 "m" 60.0) (regexFind "[a-z]+$" $interval)) -}}
{{- printf "%ds" (max 60 (mulf 4.0 $seconds | ceil | int)) -}}
{{- end -}}
