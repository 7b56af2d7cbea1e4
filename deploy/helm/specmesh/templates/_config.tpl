{{/* The TOML of each service, with the keys that its config.py reads. */}}

{{/* [server], [log] and [telemetry] of any service, as YAML: .root, .kind, .secret, .mutual, .allow, .spec. */}}
{{- define "specmesh.config.server" -}}
{{- $v := .root.Values -}}
server:
  host: 0.0.0.0
  port: {{ include "specmesh.port" .kind }}
  health_port: {{ include "specmesh.healthPort" . }}
  drain_seconds: {{ .drainSeconds }}
  {{- if eq .kind "router" }}
  # Health checks of load balancers come every second or two.
  min_drain_seconds: {{ min 3 (int .drainSeconds) }}
  {{- end }}
  {{- if $v.tls.enabled }}
  tls:
    cert_file: /etc/specmesh/tls/tls.crt
    key_file: /etc/specmesh/tls/tls.key
    {{- if .mutual }}
    client_ca_file: /etc/specmesh/tls/ca.crt
    {{- end }}
  {{- if .allow }}
  allow:
    {{- toYaml .allow | nindent 4 }}
  {{- end }}
  {{- end }}
log:
  level: {{ $v.logLevel }}
{{- if or $v.telemetry.otlpEndpoint (int $v.telemetry.prometheusPort) }}
telemetry:
  {{- with $v.telemetry.otlpEndpoint }}
  otlp_endpoint: {{ . | quote }}
  {{- end }}
  {{- with int $v.telemetry.prometheusPort }}
  prometheus_port: {{ . }}
  {{- end }}
  {{- if hasKey $v.telemetry "sampleRatio" }}
  sample_ratio: {{ $v.telemetry.sampleRatio }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where a service finds a model of `models`: .root, .model. */}}
{{- define "specmesh.source" -}}
{{- $model := index .root.Values.models .model -}}
{{- if $model.hub -}}{{ $model.hub }}
{{- else if $model.path -}}{{ $model.path }}
{{- else -}}/srv/models/{{ .model }}
{{- end -}}
{{- end -}}

{{/* The keys that the chart writes, as JSON: .root, .spec. */}}
{{- define "specmesh.keys.verifier" -}}
{{- $root := .root -}}
{{- $s := .spec -}}
{{- $model := index $root.Values.models $s.model -}}
{{- $allow := dict "specmesh.v1.VerifierService/*" (list (include "specmesh.routerIdentity" $root)) -}}
{{- $server := include "specmesh.config.server" (dict "root" $root "kind" "verifier" "mutual" true "allow" $allow "drainSeconds" (int (default 120 $s.drainSeconds))) | fromYaml -}}
{{- $keys := merge (dict "model" (include "specmesh.source" (dict "root" $root "model" $s.model))) $server -}}
{{- if $model.digest -}}{{- $_ := set $keys "model_digest" $model.digest -}}{{- end -}}
{{- if include "specmesh.hasGpu" $s -}}{{- $_ := set $keys "device" "cuda" -}}{{- end -}}
{{- if $s.dtype -}}{{- $_ := set $keys "dtype" $s.dtype -}}{{- end -}}
{{- if $s.quantization -}}{{- $_ := set $keys "quantization" $s.quantization -}}{{- end -}}
{{- with int (include "specmesh.numGpus" $s) -}}{{- $_ := set $keys "tensor_parallel" . -}}{{- end -}}
{{- if $s.kvMemory -}}{{- $_ := set $keys "kv_memory" $s.kvMemory -}}{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{- define "specmesh.keys.draft" -}}
{{- $root := .root -}}
{{- $s := .spec -}}
{{- $allow := dict "specmesh.v1.DraftService/*" (list (include "specmesh.routerIdentity" $root)) -}}
{{- $server := include "specmesh.config.server" (dict "root" $root "kind" "draft" "mutual" true "allow" $allow "drainSeconds" (int (default 10 $s.drainSeconds))) | fromYaml -}}
{{- $keys := merge (dict "kind" $s.kind) $server -}}
{{- $drafter := dict -}}
{{- if $s.model -}}
{{- $model := index $root.Values.models $s.model -}}
{{- $source := include "specmesh.source" (dict "root" $root "model" $s.model) -}}
{{- $_ := set $drafter (ternary "path" "source" (eq $s.kind "table")) $source -}}
{{- if $model.digest -}}{{- $_ := set $keys "model_digest" $model.digest -}}{{- end -}}
{{- end -}}
{{- if eq $s.kind "hf" -}}
{{- if include "specmesh.hasGpu" $s -}}{{- $_ := set $drafter "device" "cuda" -}}{{- end -}}
{{- if $s.dtype -}}{{- $_ := set $drafter "dtype" $s.dtype -}}{{- end -}}
{{- if $s.quantization -}}{{- $_ := set $drafter "quantization" $s.quantization -}}{{- end -}}
{{- if $s.kvMemory -}}{{- $_ := set $drafter "kv_memory_bytes" (include "specmesh.quantity" (trimSuffix "B" $s.kvMemory) | float64 | int64) -}}{{- end -}}
{{- end -}}
{{- if $drafter -}}{{- $_ := set $keys "drafter" $drafter -}}{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{- define "specmesh.keys.router" -}}
{{- $root := .root -}}
{{- $v := .root.Values -}}
{{- $keys := include "specmesh.config.server" (dict "root" $root "kind" "router" "mutual" $v.tls.clientCertificates "drainSeconds" (int $v.router.drainSeconds)) | fromYaml -}}
{{- $verifiers := list -}}
{{- range $v.verifiers -}}
{{- $verifiers = append $verifiers (include "specmesh.address" (dict "root" $root "kind" "verifier" "pool" .name)) -}}
{{- end -}}
{{- $pools := list -}}
{{- range $v.drafts -}}
{{- $pool := dict "name" .name "addresses" (list (include "specmesh.address" (dict "root" $root "kind" "draft" "pool" .name))) "trust" (default "full" .trust) -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $pool "server_name" (include "specmesh.draftName" (dict "root" $root "kind" "draft" "pool" .name "spec" .)) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- $_ := set $keys "verifiers" $verifiers -}}
{{- $_ := set $keys "pools" $pools -}}
{{- if $v.router.policy -}}{{- $_ := set $keys "policy" $v.router.policy -}}{{- end -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $keys "tls" (dict "ca_file" "/etc/specmesh/mesh-tls/ca.crt" "cert_file" "/etc/specmesh/mesh-tls/tls.crt" "key_file" "/etc/specmesh/mesh-tls/tls.key") -}}
{{- $_ := set $keys "verifier_server_name" (include "specmesh.verifierName" $root) -}}
{{- end -}}
{{- $callers := list -}}
{{- range $v.auth.callers -}}
{{- $caller := dict "name" .name -}}
{{- if .identities -}}{{- $_ := set $caller "identities" .identities -}}{{- end -}}
{{- with include "specmesh.tokenKey" . -}}{{- $_ := set $caller "token_file" (printf "/etc/specmesh/tokens/%s" .) -}}{{- end -}}
{{- if hasKey . "pools" -}}{{- $_ := set $caller "pools" .pools -}}{{- end -}}
{{- if hasKey . "roles" -}}{{- $_ := set $caller "roles" .roles -}}{{- end -}}
{{- if hasKey . "maxPriority" -}}{{- $_ := set $caller "max_priority" (int .maxPriority) -}}{{- end -}}
{{- if hasKey . "maxSessions" -}}{{- $_ := set $caller "max_sessions" (int .maxSessions) -}}{{- end -}}
{{- if hasKey . "maxTokensPerMinute" -}}{{- $_ := set $caller "max_tokens_per_minute" (int .maxTokensPerMinute) -}}{{- end -}}
{{- $callers = append $callers $caller -}}
{{- end -}}
{{- if $callers -}}{{- $_ := set $keys "callers" $callers -}}{{- end -}}
{{- toJson $keys -}}
{{- end -}}
