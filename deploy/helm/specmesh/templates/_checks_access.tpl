{{/* Checks of certificates and callers. */}}

{{- define "specmesh.checks.tls" -}}
{{- $tls := .Values.tls }}
{{- if and $tls.enabled (not $tls.routerSecret) }}
tls.routerSecret: tls.enabled needs it, the secret of the routers' certificate (tls.crt, tls.key, ca.crt)
{{- end }}
{{- if and $tls.clientCertificates (not $tls.enabled) }}
tls.clientCertificates: needs tls.enabled
{{- end }}
{{- end -}}

{{/* The secret of a pool's certificate. */}}
{{- define "specmesh.secret" -}}
{{- $own := (default dict .spec.tls).secret -}}
{{- $shared := dict "router" .root.Values.tls.routerSecret "verifier" .root.Values.tls.verifierSecret "draft" .root.Values.tls.draftSecret -}}
{{- default (index $shared .kind) $own -}}
{{- end -}}

{{/* What routers answer with, and what they show to verifiers and drafts. */}}
{{- define "specmesh.routerSecrets" -}}
{{- $tls := .Values.tls -}}
{{- compact (list $tls.routerSecret (default $tls.routerSecret $tls.meshSecret)) | toYaml -}}
{{- end -}}

{{/* The name that a component's certificate must have. */}}
{{- define "specmesh.certificateName" -}}
{{- if eq .kind "router" -}}{{ include "specmesh.routerIdentity" .root }}
{{- else if eq .kind "verifier" -}}{{ include "specmesh.verifierName" .root }}
{{- else -}}{{ include "specmesh.draftName" . }}
{{- end -}}
{{- end -}}

{{- define "specmesh.checks.certificate" -}}
{{- $tls := default dict .spec.tls }}
{{- if and .root.Values.tls.enabled .pool }}
{{- if not (include "specmesh.secret" .) }}
tls.secret: tls.enabled needs tls.{{ .kind }}Secret, or a secret of this pool
{{- end }}
{{- if eq (default "full" .spec.trust) "untrusted" }}
{{- if has (include "specmesh.secret" .) (include "specmesh.routerSecrets" .root | fromYamlArray) }}
tls.secret: {{ include "specmesh.secret" . }} is the routers', with which this pool, which is not trusted, could call verifiers and drafts; give it its own
{{- else if not $tls.shared }}
{{- include "specmesh.checks.untrustedCertificate" . }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $tls.shared (ne (default "full" .spec.trust) "untrusted") }}
tls.shared: is for pools with trust: untrusted; leave it out
{{- end }}
{{- end -}}

{{/* With a key that another part holds too, a pool that is not trusted could answer in its place. */}}
{{- define "specmesh.checks.untrustedCertificate" -}}
{{- $component := . }}
{{- $root := .root }}
{{- $own := (default dict .spec.tls).secret }}
{{- if not $own }}
tls.secret: a pool that is not trusted needs a certificate of its own, as with the drafts' it could pass for a trusted pool; name its secret, or accept that with tls.shared: true
{{- else }}
{{- $others := list }}
{{- $names := list }}
{{- range $other := include "specmesh.components" $root | fromYamlArray }}
{{- $_ := set $other "root" $root }}
{{- if ne (include "specmesh.where" $other) (include "specmesh.where" $component) }}
{{- if eq (include "specmesh.secret" $other) $own }}{{- $others = append $others (include "specmesh.where" $other) }}{{- end }}
{{- if eq (include "specmesh.certificateName" $other) (include "specmesh.certificateName" $component) }}{{- $names = append $names (include "specmesh.where" $other) }}{{- end }}
{{- end }}
{{- end }}
{{- with $others }}
tls.secret: {{ $own }} is the certificate of {{ join ", " . }} too, for which this pool, which is not trusted, could pass; give it its own, or accept that with tls.shared: true
{{- end }}
{{- with $names }}
tls.serverName: is the name in the certificate of {{ join ", " . }} too, for which this pool, which is not trusted, could pass; take another name
{{- end }}
{{- end }}
{{- end -}}

{{- define "specmesh.checks.callers" -}}
{{- $v := .Values }}
{{- $pools := list }}
{{- range $v.drafts }}{{- $pools = append $pools .name }}{{- end }}
{{- if and $v.auth.existingSecret (not $v.auth.callers) }}
auth.callers: auth.existingSecret is set but no caller is named, so that everybody could do everything; name a caller for each key of the secret
{{- end }}
{{- range $v.auth.callers }}
{{- $where := printf "auth.callers %s" .name }}
{{- range .pools }}{{- if not (has . $pools) }}
{{ $where }}: pools names {{ . }}, but there is no draft pool of that name{{ with $pools }}; there are {{ join ", " . }}{{ end }}
{{- end }}{{- end }}
{{- if and .identities (not $v.tls.clientCertificates) }}
{{ $where }}: identities are those of certificates, for which nobody asks; set tls.clientCertificates (and tls.enabled)
{{- end }}
{{- if and (include "specmesh.tokenKey" .) (not $v.auth.existingSecret) }}
{{ $where }}: a token needs auth.existingSecret, a secret with the key {{ include "specmesh.tokenKey" . }}
{{- end }}
{{- end }}
{{- include "specmesh.checks.callersApart" . }}
{{- include "specmesh.checks.testCaller" . }}
{{- end -}}

{{/* The key of a caller's token; empty for one that is known by its certificate. */}}
{{- define "specmesh.tokenKey" -}}
{{- if or .key (not .identities) -}}{{- default .name .key -}}{{- end -}}
{{- end -}}

{{/* No name, token or identity that stands for two callers. */}}
{{- define "specmesh.checks.callersApart" -}}
{{- $seen := list }}
{{- range $caller := .Values.auth.callers }}
{{- $marks := list (printf "name %s" .name) }}
{{- with include "specmesh.tokenKey" . }}{{- $marks = append $marks (printf "key %s" .) }}{{- end }}
{{- range .identities }}{{- $marks = append $marks (printf "identity %s" .) }}{{- end }}
{{- range $marks }}{{- if has . $seen }}
auth.callers {{ $caller.name }}: another caller has the {{ . }} too; each needs its own
{{- end }}{{- end }}
{{- $seen = concat $seen $marks }}
{{- end }}
{{- end -}}

{{/* Whose token `helm test` shows. */}}
{{- define "specmesh.checks.testCaller" -}}
{{- $keys := list }}
{{- range .Values.auth.callers }}
{{- if and (include "specmesh.tokenKey" .) (has "client" (ternary .roles (list "client") (hasKey . "roles"))) }}
{{- $keys = append $keys (include "specmesh.tokenKey" .) }}
{{- end }}
{{- end }}
{{- $given := .Values.test.tokenKey }}
{{- if and $keys (not $given) }}
test.tokenKey: `helm test` generates as one of auth.callers; name the key of one that may: {{ join ", " $keys }}
{{- else if and $given (not (has $given $keys)) }}
test.tokenKey: no caller with the role client has the key {{ $given }}; {{ if $keys }}name one of {{ join ", " $keys }}{{ else }}leave it empty{{ end }}
{{- end }}
{{- end -}}
