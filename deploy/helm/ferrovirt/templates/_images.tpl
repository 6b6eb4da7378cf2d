{{- define "ferrovirt.registry" -}}
{{ required "image.registry is not set: name the registry to which `ferrovirt images push` sent the images" .Values.image.registry }}
{{- end }}
{{- define "ferrovirt.component" -}}
{{ include "ferrovirt.registry" . }}/component{{ if .Values.image.digests.component }}@{{ .Values.image.digests.component }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- define "ferrovirt.launcher" -}}
{{ include "ferrovirt.registry" . }}/launcher{{ if .Values.image.digests.launcher }}@{{ .Values.image.digests.launcher }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- define "ferrovirt.tekton-tasks" -}}
{{ include "ferrovirt.registry" . }}/tekton-tasks{{ if .Values.image.digests.tektonTasks }}@{{ .Values.image.digests.tektonTasks }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- define "ferrovirt.guestfs" -}}
{{ include "ferrovirt.registry" . }}/guestfs{{ if .Values.image.digests.guestfs }}@{{ .Values.image.digests.guestfs }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
