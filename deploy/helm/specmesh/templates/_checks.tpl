{{/* What a schema cannot say. */}}
{{- define "specmesh.checks" -}}
{{- $v := .Values -}}
{{- range $list := list "verifiers" "drafts" -}}
{{- $names := list -}}
{{- range index $v $list -}}
{{- if has .name $names -}}{{- fail (printf "%s: two pools are called %s" $list .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- $drafts := list -}}
{{- range $v.drafts -}}{{- $drafts = append $drafts .name -}}{{- end -}}
{{- $models := list -}}
{{- range $v.verifiers -}}
{{- if not (hasKey $v.models .model) -}}{{- fail (printf "verifiers %s: models has no %s" .name .model) -}}{{- end -}}
{{- if and .quantization (gt (int (include "specmesh.numGpus" .)) 1) -}}
{{- fail (printf "verifiers %s: a quantised model cannot be divided among several GPUs" .name) -}}
{{- end -}}
{{- $models = append $models .model -}}
{{- end -}}
{{- if gt (len (uniq $models)) 1 -}}
{{- fail (printf "verifiers: one release serves one model, not %s" (uniq $models | join ", ")) -}}
{{- end -}}
{{- range $v.drafts -}}
{{- if and .model (not (hasKey $v.models .model)) -}}{{- fail (printf "drafts %s: models has no %s" .name .model) -}}{{- end -}}
{{- if and $v.tls.enabled (not (or $v.tls.draftSecret (default dict .tls).secret)) -}}
{{- fail (printf "drafts %s: tls.enabled needs tls.draftSecret, or tls.secret of the pool" .name) -}}
{{- end -}}
{{- end -}}
{{- if $v.tls.enabled -}}
{{- if not $v.tls.routerSecret -}}{{- fail "tls.enabled needs tls.routerSecret" -}}{{- end -}}
{{- range $v.verifiers -}}
{{- if not (or $v.tls.verifierSecret (default dict .tls).secret) -}}{{- fail "tls.enabled needs tls.verifierSecret" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $callers := list -}}
{{- range $v.auth.callers -}}
{{- if has .name $callers -}}{{- fail (printf "auth.callers: two are called %s" .name) -}}{{- end -}}
{{- $callers = append $callers .name -}}
{{- range .pools -}}
{{- if not (has . $drafts) -}}{{- fail (printf "auth.callers: there is no draft pool %s" .) -}}{{- end -}}
{{- end -}}
{{- if and .identities (not $v.tls.clientCertificates) -}}
{{- fail (printf "auth.callers %s: identities need tls.clientCertificates" .name) -}}
{{- end -}}
{{- if and (or .key (not .identities)) (not $v.auth.existingSecret) -}}
{{- fail (printf "auth.callers %s: a token needs auth.existingSecret" .name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.auth.callers (not $v.test.tokenKey) -}}
{{- fail "test.tokenKey: with auth.callers `helm test` needs the token of one of them" -}}
{{- end -}}
{{- if and $v.tls.clientCertificates (not $v.tls.enabled) -}}{{- fail "tls.clientCertificates needs tls.enabled" -}}{{- end -}}
{{- end -}}
