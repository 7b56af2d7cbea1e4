{{/* What NOTES say of a release. Each template writes whole lines, or nothing. */}}

{{/* How many replicas: "2", or "1 to 4 (keda)" with an autoscaler. */}}
{{- define "specmesh.notes.replicas" -}}
{{- $scaling := default dict .autoscaling -}}
{{- if $scaling.enabled -}}
{{ int $scaling.min }} to {{ int $scaling.max }} ({{ default "hpa" $scaling.kind }})
{{- else -}}
{{ int (ternary .replicas 1 (hasKey . "replicas")) }}
{{- end -}}
{{- end -}}

{{- define "specmesh.notes.device" -}}
{{- $gpu := default dict .gpu -}}
{{- if $gpu.claim -}}, on {{ int (default 1 $gpu.claim.count) }} {{ $gpu.claim.deviceClassName }} each
{{- else if int $gpu.count -}}, on {{ int $gpu.count }} {{ default "nvidia.com/gpu" $gpu.resource }} each
{{- else -}}, on CPUs
{{- end -}}
{{- end -}}

{{- define "specmesh.notes.verifier" -}}
{{ .name }}: {{ include "specmesh.notes.replicas" . }} of {{ .model }}{{ include "specmesh.notes.device" . }}
{{- end -}}

{{- define "specmesh.notes.draft" -}}
{{ .name }}: {{ include "specmesh.notes.replicas" . }} of kind {{ .kind }}
{{- with .model }}, model {{ . }}{{ end }}
{{- include "specmesh.notes.device" . }}
{{- if eq (default "full" .trust) "untrusted" }}, not trusted: greedy, seeded and one-hot drafts only{{ end }}
{{- end -}}

{{/* What a rollout of the verifiers costs. */}}
{{- define "specmesh.notes.rollout" -}}
{{- $replicas := 0 }}
{{- range .Values.verifiers }}
{{- $replicas = add $replicas (ternary .replicas 1 (hasKey . "replicas") | int) (ternary 1 0 (eq (toString (default dict .autoscaling).enabled) "true")) }}
{{- end }}
{{- if not $replicas }}
No verifier has a replica: nothing is generated until one has.
{{- end }}
{{- $scaled := (default dict (first .Values.verifiers).autoscaling).enabled }}
{{- $several := gt (int (ternary (first .Values.verifiers).replicas 1 (hasKey (first .Values.verifiers) "replicas"))) 1 }}
{{- $one := not (or $scaled $several (gt (len .Values.verifiers) 1)) }}
{{- $surging := list }}
{{- range .Values.verifiers }}
{{- $surge := get (include "specmesh.rollingUpdate" . | fromYaml) "maxSurge" | toString }}
{{- if not (regexMatch "^0+%?$" $surge) }}{{- $surging = append $surging .name }}{{- end }}
{{- end }}
{{- if and $one $surging }}
One verifier: in a rollout the new one is ready before the old one ends, which takes a place for both. Sessions of the old one are
finished within drainSeconds; what is left then goes on at the new one.
{{- else if $one }}
One verifier: its rollout needs no spare GPU, because the old pod ends before the new one starts. From SIGTERM until the new one
has loaded its model, running requests are finished (drainSeconds at most) and new ones get UNAVAILABLE. With a spare GPU, set
verifiers[].rollout: {maxSurge: 1, maxUnavailable: 0}; with two verifiers, one serves while the other is replaced.
{{- else }}
{{- if lt (len $surging) (len .Values.verifiers) }}
Rollouts need no spare GPU: the old pod ends before the new one starts, one at a time{{ with $surging }}, but for what follows{{ end }}.
{{- end }}
{{- range $surging }}
In pool {{ . }} the new verifier is ready before the old one ends, which takes a place for both.
{{- end }}
Sessions of a verifier that goes are finished within drainSeconds; what is left then goes on at another one.
{{- end }}
{{- end -}}

{{/* Models that nobody said should run on CPUs, and values that the autoscaler overrides. */}}
{{- define "specmesh.notes.pools" -}}
{{- range include "specmesh.components" . | fromYamlArray }}
{{- $where := include "specmesh.where" . }}
{{- $s := .spec }}
{{- if and .pool $s.model (ne (default "" $s.kind) "table") (not (hasKey $s "gpu")) }}

{{ $where }}: has no gpu, so that its model runs on CPUs. If that is meant, gpu: {count: 0} says so; if not, gpu: {count: 1}.
{{- end }}
{{- if and .pool (include "specmesh.hasGpu" $s) (not $s.kvMemory) }}

{{ $where }}: has no kvMemory, so that it keeps {{ ternary "1GiB" "256MiB" (eq .kind "verifier") }} of keys and values, however large its GPU is.
{{- end }}
{{- if and (eq .kind "verifier") (gt (int (default dict $s.gpu).count) 1) (contains "/mig-" (default "" $s.gpu.resource)) }}

{{ $where }}: divides its model among {{ int $s.gpu.count }} {{ $s.gpu.resource }}, which was not tried; slices have no fast link to each other.
{{- end }}
{{- if and (eq .kind "draft") (gt (int (default dict $s.gpu).count) 1) }}

{{ $where }}: asks for {{ int $s.gpu.count }} {{ default "nvidia.com/gpu" $s.gpu.resource }} a pod, but a draft computes on one device. More replicas use more.
{{- end }}
{{- if and .pool (default dict $s.autoscaling).enabled (hasKey $s "replicas") }}

{{ $where }}: replicas is not used, because the autoscaler says how many there are, from {{ int $s.autoscaling.min }} on.
{{- end }}
{{- end }}
{{- end -}}

{{/* Metrics: who can scrape them, and by what. */}}
{{- define "specmesh.notes.metrics" -}}
{{- $v := .Values }}
{{- if int $v.telemetry.prometheusPort }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.scrapeFrom) }}

Metrics are exported on port {{ int $v.telemetry.prometheusPort }}, but the network policy lets nobody reach it: name your Prometheus in networkPolicy.scrapeFrom.
{{- end }}
{{- if and $v.telemetry.podMonitor.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}

No PodMonitor was made, because the cluster has no monitoring.coreos.com/v1. Have your Prometheus scrape the port `metrics` of the pods
labelled app.kubernetes.io/instance={{ .Release.Name }}, with their labels (autoscaling asks by them), or install the Prometheus
operator and upgrade this release.
{{- end }}
{{- end }}
{{- $adapter := .Capabilities.APIVersions.Has "external.metrics.k8s.io/v1beta1" }}
{{- range include "specmesh.components" . | fromYamlArray }}
{{- $scaling := default dict .spec.autoscaling }}
{{- if and .pool $scaling.enabled (ne (default "hpa" $scaling.kind) "keda") (not $adapter) }}

{{ include "specmesh.where" . }}: scales by the external metrics API, which this cluster does not have. Install an adapter that serves the metric
(docs/operating.md, Scaling), or set kind: keda.
{{- end }}
{{- end }}
{{- end -}}

{{/* Doors that stand open. */}}
{{- define "specmesh.notes.access" -}}
{{- $v := .Values }}
{{- if not $v.tls.enabled }}

TLS is off: whoever can read the cluster's network reads prompts and texts{{ if $v.auth.existingSecret }}, and the tokens of callers{{ end }}. See tls in values.yaml.
{{- $named := list }}
{{- range list "routerSecret" "meshSecret" "verifierSecret" "draftSecret" }}{{- if index $v.tls . }}{{- $named = append $named . }}{{- end }}{{- end }}
{{- with $named }}
The certificates of tls.{{ join ", tls." . }} are not used: tls.enabled is false.
{{- end }}
{{- end }}
{{- if not $v.auth.callers }}

No callers are configured: whoever reaches the routers may generate, list the drafts and ask for reports of steps. See auth.
{{- end }}
{{- if not $v.networkPolicy.enabled }}

Network policies are off: any pod of the cluster can reach drafts and verifiers{{ if not $v.tls.enabled }}, and they answer it{{ end }}.
{{- end }}
{{- include "specmesh.notes.egress" . }}
{{- include "specmesh.notes.idle" . }}
{{- include "specmesh.notes.untrusted" . }}
{{- include "specmesh.notes.certificates" . }}
{{- end -}}

{{/* Where drafts, which see contexts, may send more than the threat model has it. */}}
{{- define "specmesh.notes.egress" -}}
{{- $v := .Values }}
{{- if $v.networkPolicy.enabled }}
{{- range $v.drafts }}
{{- if (default dict (index $v.models (default "" .model))).hub }}

drafts {{ .name }}: sees contexts, and may reach port 443 anywhere, because its model comes from the hub. By pvc or image it needs no way out.
{{- end }}
{{- if .egress }}

drafts {{ .name }}: sees contexts, and may reach what its egress names.
{{- end }}
{{- end }}
{{- if and $v.telemetry.otlpEndpoint (not $v.networkPolicy.otlpTo) }}

networkPolicy.otlpTo is empty: drafts and verifiers may reach port {{ include "specmesh.otlpPort" . }} anywhere. Name the collector there.
{{- end }}
{{- end }}
{{- end -}}

{{/* Pools that all callers are kept from. */}}
{{- define "specmesh.notes.idle" -}}
{{- $everywhere := not .Values.auth.callers }}
{{- $reached := list }}
{{- range .Values.auth.callers }}
{{- if hasKey . "pools" }}{{- $reached = concat $reached .pools }}{{- else }}{{- $everywhere = true }}{{- end }}
{{- end }}
{{- range .Values.drafts }}
{{- if not (or $everywhere (has .name $reached)) }}

drafts {{ .name }}: no caller may reach it (auth.callers[].pools), so that it drafts nothing.
{{- end }}
{{- end }}
{{- end -}}

{{/* Pools that are not trusted see the contexts of every caller that is not kept from them. */}}
{{- define "specmesh.notes.untrusted" -}}
{{- $callers := list }}
{{- range .Values.auth.callers }}{{- if not (hasKey . "pools") }}{{- $callers = append $callers .name }}{{- end }}{{- end }}
{{- range .Values.drafts }}
{{- if eq (default "full" .trust) "untrusted" }}
{{- if not $.Values.auth.callers }}

drafts {{ .name }}: is not trusted, and sees the contexts of every caller. auth.callers[].pools keeps those of a caller away.
{{- else if $callers }}

drafts {{ .name }}: is not trusted, and sees the contexts of callers without pools: {{ join ", " $callers }}.
{{- end }}
{{- if (default dict .tls).shared }}

drafts {{ .name }}: is not trusted and shares a certificate (tls.shared): it could answer in the place of those who hold it too.
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Parts that share a certificate can pass for each other. */}}
{{- define "specmesh.notes.certificates" -}}
{{- $tls := .Values.tls }}
{{- if $tls.enabled }}
{{- $routers := include "specmesh.routerSecrets" . | fromYamlArray }}
{{- range include "specmesh.components" . | fromYamlArray }}
{{- if and (ne .kind "router") (has (default "" (default dict .spec.tls).secret) $routers) }}

{{ include "specmesh.where" . }}: tls.secret is the routers' certificate too: whoever holds it can call drafts and verifiers as a router. Give it one of its own.
{{- end }}
{{- end }}
{{- range $part := list "verifierSecret" "draftSecret" }}
{{- if has (index $tls $part) $routers }}

tls.{{ $part }} is the routers' certificate too: whoever holds it can call drafts and verifiers as a router. Give it one of its own.
{{- end }}
{{- end }}
{{- if and $tls.draftSecret (eq $tls.draftSecret $tls.verifierSecret) }}

tls.draftSecret is the verifiers' certificate too: a draft could pass for a verifier. Give the drafts one of their own.
{{- end }}
{{- end }}
{{- end -}}
