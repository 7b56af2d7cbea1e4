{{/* All components as a YAML list of kind, pool and spec: what every pool gets is written once. */}}
{{- define "specmesh.components" -}}
- {kind: router, pool: "", spec: {{ toJson .Values.router }}}
{{- range .Values.verifiers }}
- {kind: verifier, pool: {{ .name | quote }}, spec: {{ toJson . }}}
{{- end }}
{{- range .Values.drafts }}
- {kind: draft, pool: {{ .name | quote }}, spec: {{ toJson . }}}
{{- end }}
{{- end -}}
