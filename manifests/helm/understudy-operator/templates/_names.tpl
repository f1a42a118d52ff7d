{{- define "understudy.labels" -}}
app.kubernetes.io/name: understudy-operator
{{- end -}}
