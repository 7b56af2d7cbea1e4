{{/* Values as TOML: keys of a table first, then its tables as sections and its lists of tables as [[sections]]. */}}

{{- define "specmesh.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}{{ . }}{{- else -}}{{ . | toJson }}{{- end -}}
{{- end -}}

{{/* One value on one line. Whole numbers stay whole: values from YAML are floating-point numbers. */}}
{{- define "specmesh.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha -}}
{{- if $index }}, {{ else }} {{ end -}}
{{ include "specmesh.toml.key" $key }} = {{ include "specmesh.toml.value" (index $ $key) }}
{{- end }} }
{{- else if kindIs "slice" . -}}
[{{- range $index, $item := . -}}
{{- if $index }}, {{ end -}}
{{ include "specmesh.toml.value" $item }}
{{- end -}}]
{{- else if kindIs "float64" . -}}
{{- if eq (float64 (int64 .)) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "string" . -}}
{{ . | toJson }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* "table", "tables" or "value": how a value is written. */}}
{{- define "specmesh.toml.form" -}}
{{- if kindIs "map" . -}}table
{{- else if kindIs "slice" . -}}
{{- $maps := 0 -}}
{{- range . -}}{{- if kindIs "map" . -}}{{- $maps = add1 $maps -}}{{- end -}}{{- end -}}
{{- if and $maps (eq (int $maps) (len .)) -}}tables{{- else -}}value{{- end -}}
{{- else -}}value
{{- end -}}
{{- end -}}

{{/* A table: .head (its section's line, empty at the top), .path, .table. */}}
{{- define "specmesh.toml" -}}
{{- $path := .path -}}
{{- $table := .table -}}
{{- $lines := list -}}
{{- range $key := keys $table | sortAlpha -}}
{{- if eq (include "specmesh.toml.form" (index $table $key)) "value" -}}
{{- $lines = append $lines (printf "%s = %s" (include "specmesh.toml.key" $key) (include "specmesh.toml.value" (index $table $key))) -}}
{{- end -}}
{{- end -}}
{{- if or $lines .head -}}
{{- if .head }}
{{ .head }}
{{ end -}}
{{- if $lines -}}
{{ join "\n" $lines }}
{{ end -}}
{{- end -}}
{{- range $key := keys $table | sortAlpha -}}
{{- $value := index $table $key -}}
{{- $name := include "specmesh.toml.key" $key -}}
{{- $below := ternary (printf "%s.%s" $path $name) $name (ne $path "") -}}
{{- $form := include "specmesh.toml.form" $value -}}
{{- if eq $form "table" -}}
{{- include "specmesh.toml" (dict "head" (printf "[%s]" $below) "path" $below "table" $value) -}}
{{- else if eq $form "tables" -}}
{{- range $value -}}
{{- include "specmesh.toml" (dict "head" (printf "[[%s]]" $below) "path" $below "table" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A component's file, the chart's keys and the user's: .root, .kind, .spec. Checks refuse a key that both give. */}}
{{- define "specmesh.config" -}}
{{- $keys := include (printf "specmesh.keys.%s" .kind) . | fromJson -}}
{{- include "specmesh.toml" (dict "head" "" "path" "" "table" (mergeOverwrite (deepCopy (default dict .spec.config)) $keys)) -}}
{{- end -}}

{{/* Paths that two tables share, a table in both aside. */}}
{{- define "specmesh.clash" -}}
{{- $path := .path -}}
{{- $b := .b -}}
{{- range $key, $value := .a -}}
{{- if hasKey $b $key -}}
{{- $other := index $b $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $other) -}}
{{- include "specmesh.clash" (dict "a" $value "b" $other "path" (printf "%s%s." $path $key)) -}}
{{- else -}}
{{- printf "%s%s " $path $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Paths of the nulls of a table: .table, .path. */}}
{{- define "specmesh.nulls" -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- if kindIs "invalid" $value -}}
{{- printf "%s%s " $path $key -}}
{{- else if kindIs "map" $value -}}
{{- include "specmesh.nulls" (dict "table" $value "path" (printf "%s%s." $path $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
