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
{{- else }}
{{- include "specmesh.checks.scalingByMetrics" . }}
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

{{/* By metrics that somebody has to scrape. */}}
{{- define "specmesh.checks.scalingByMetrics" -}}
{{- $v := .root.Values }}
{{- if not $v.telemetry.prometheusPort }}
autoscaling: needs telemetry.prometheusPort, where what it goes by is exported; set it, such as 9464
{{- end }}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.scrapeFrom) }}
autoscaling: networkPolicy.scrapeFrom is empty, so that nobody can scrape what it goes by; name your Prometheus there, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
{{- end }}
{{- if and (eq (default "hpa" .spec.autoscaling.kind) "keda") (not $v.autoscaling.prometheusAddress) }}
autoscaling: kind keda needs autoscaling.prometheusAddress, where the metrics can be asked for, such as http://prometheus.monitoring:9090
{{- end }}
{{- end -}}
