{{/* Checks of what scales a component: .root, .kind, .pool, .spec. */}}

{{- define "specmesh.checks.scaling" -}}
{{- $scaling := default dict .spec.autoscaling }}
{{- if $scaling.enabled }}
{{- if gt (int $scaling.min) (int $scaling.max) }}
autoscaling: min is {{ int $scaling.min }}, above max, which is {{ int $scaling.max }}; raise max or lower min
{{- end }}
{{- if not (int $scaling.min) }}
{{- include "specmesh.checks.scalingFromZero" . }}
{{- end }}
{{- if eq .kind "router" }}
{{- include "specmesh.checks.scalingOfRouters" . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.scalingFromZero" -}}
{{- if eq .kind "verifier" }}
autoscaling: min is 0, but the queue is measured by verifiers, so that none would ever be started; set min to 1
{{- else if ne (default "hpa" .spec.autoscaling.kind) "keda" }}
autoscaling: min is 0, which only kind keda can do; set kind: keda, or min to 1
{{- end }}
{{- end -}}

{{/* By processor time. */}}
{{- define "specmesh.checks.scalingOfRouters" -}}
{{- $target := .spec.autoscaling.target }}
{{- if eq (default "hpa" .spec.autoscaling.kind) "keda" }}
autoscaling: kind keda is for pools; routers follow processor time, which hpa does
{{- end }}
{{- if or (lt $target 1.0) (ne (float64 (int $target)) (float64 $target)) }}
autoscaling: target is percent of the requested processor time, a whole number, not {{ $target }}
{{- end }}
{{- $resources := default dict .spec.resources }}
{{- if not (or (default dict $resources.requests).cpu (default dict $resources.limits).cpu) }}
autoscaling: goes by the requested processor time; set router.resources.requests.cpu
{{- end }}
{{- end -}}

{{/* By metrics that somebody has to scrape: what all pools that go by them need, said once. */}}
{{- define "specmesh.checks.metrics" -}}
{{- $v := .Values }}
{{- $pools := list }}
{{- $keda := list }}
{{- range include "specmesh.components" . | fromYamlArray }}
{{- if and .pool (default dict .spec.autoscaling).enabled }}
{{- $pools = append $pools (include "specmesh.where" .) }}
{{- if eq (default "hpa" .spec.autoscaling.kind) "keda" }}{{- $keda = append $keda (include "specmesh.where" .) }}{{- end }}
{{- end }}
{{- end }}
{{- if and $pools (not (int $v.telemetry.prometheusPort)) }}
telemetry.prometheusPort: is 0, but what {{ join ", " $pools }} scale by is exported there; set it, such as 9464
{{- end }}
{{- if and $pools $v.networkPolicy.enabled (not $v.networkPolicy.scrapeFrom) }}
networkPolicy.scrapeFrom: is empty, so that nobody can scrape what {{ join ", " $pools }} scale by; name your Prometheus, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
{{- end }}
{{- if and $keda (not $v.autoscaling.prometheusAddress) }}
autoscaling.prometheusAddress: is empty, but KEDA asks there for what {{ join ", " $keda }} scale by; set it, such as http://prometheus.monitoring:9090
{{- end }}
{{- end -}}
