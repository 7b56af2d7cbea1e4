{{/* Every replica of a pool, ready or not: routers look after health themselves, and a replica that drains must keep its
address until its sessions have ended. */}}
{{- define "specmesh.headless" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "specmesh.name" . }}
  labels:
    {{- include "specmesh.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "specmesh.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ include "specmesh.port" .kind }}, targetPort: grpc, appProtocol: grpc}
{{- end -}}
