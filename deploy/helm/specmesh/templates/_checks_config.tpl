{{/* Checks of keys that go to a service's own configuration. Each gets one component: .root, .kind, .pool, .spec. */}}

{{/* Keys under `config` that the chart writes itself, and nulls, which TOML does not have. */}}
{{- define "specmesh.checks.config" -}}
{{- range .spec.env }}{{- if hasPrefix "SPECMESH_" .name }}
env: {{ .name }} would win over what the chart sets; use config, or the value it comes from
{{- end }}{{- end }}
{{- $config := default dict .spec.config }}
{{- if and $config (or (not .spec.model) (hasKey .root.Values.models .spec.model)) }}
{{- $keys := include (printf "specmesh.keys.%s" .kind) . | fromJson }}
{{- range include "specmesh.clash" (dict "a" $config "b" $keys "path" "") | splitList " " | compact }}
config: {{ . }} is set by the chart; use the value that it comes from
{{- end }}
{{- range include "specmesh.nulls" (dict "table" $config "path" "") | splitList " " | compact }}
config: {{ . }} is null, which has no meaning in TOML; leave the key out
{{- end }}
{{- end }}
{{- end -}}

{{/* Keys that the service would refuse when it starts, which in a rollout is after the old pod has gone. A pool with an image of
its own may know others. */}}
{{- define "specmesh.checks.keys" -}}
{{- if and (or .spec.config .spec.policy) (not .spec.image) }}
{{- $service := ternary (printf "draft-%s" .spec.kind) .kind (eq .kind "draft") }}
{{- $known := list }}
{{- range .root.Files.Lines "config-keys.txt" }}
{{- if hasPrefix (printf "%s " $service) . }}{{- $known = append $known (trimPrefix (printf "%s " $service) .) }}{{- end }}
{{- end }}
{{- $given := dict "config: " (default dict .spec.config) }}
{{- with .spec.policy }}{{- $_ := set $given "" (dict "policy" .) }}{{- end }}
{{- range $where, $table := $given }}
{{- range include "specmesh.unknown" (dict "table" $table "path" "" "known" $known) | splitList " " | compact }}
{{ $where }}{{ . }} is no key of a {{ $service }}; {{ include "specmesh.beside" (dict "key" . "known" $known) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Paths of a table that are none of .known: .table, .path, .known. */}}
{{- define "specmesh.unknown" -}}
{{- $known := .known -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- $here := printf "%s%s" $path $key -}}
{{- if not (has $here $known) -}}
{{- if and (kindIs "map" $value) (contains (printf "\n%s." $here) (printf "\n%s" (join "\n" $known))) -}}
{{- include "specmesh.unknown" (dict "table" $value "path" (printf "%s." $here) "known" $known) -}}
{{- else -}}
{{- printf "%s " $here -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What could have been meant: the keys of the same section. */}}
{{- define "specmesh.beside" -}}
{{- $section := regexReplaceAll "[^.]*$" .key "" -}}
{{- $names := list -}}
{{- range .known -}}
{{- if hasPrefix $section . -}}{{- $names = append $names (trimPrefix $section . | splitList "." | first) -}}{{- end -}}
{{- end -}}
{{ default "the top" (trimSuffix "." $section) }} has {{ uniq $names | join ", " }}
{{- end -}}
