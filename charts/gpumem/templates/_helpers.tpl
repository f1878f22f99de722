{{- define "gpumem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of all names. It leaves room for the suffix: names end at 63 characters. */}}
{{- define "gpumem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gpumem.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The versions of Kubernetes that gpumem-scheduler serves: those it is made for and one minor above. */}}
{{- define "gpumem.plugin.serves" -}}
>=1.35.0-0 <1.39.0-0
{{- end -}}

{{/* The tag of gpumem-scheduler's image: kube-scheduler must not be newer than the API server. */}}
{{- define "gpumem.plugin.tag" -}}
{{ .Chart.AppVersion }}-kube1.{{ min 37 (semver .Capabilities.KubeVersion.Version).Minor }}
{{- end -}}

{{/* The mode. "bundled" is the plugin where it serves the cluster's version. */}}
{{- define "gpumem.mode" -}}
{{- if ne .Values.scheduler.mode "bundled" -}}
{{ .Values.scheduler.mode }}
{{- else -}}
{{ ternary "plugin" "extender" (semverCompare (include "gpumem.plugin.serves" .) .Capabilities.KubeVersion.Version) }}
{{- end -}}
{{- end -}}

{{- define "gpumem.scheduler.fullname" -}}
{{ include "gpumem.fullname" . }}-scheduler
{{- end -}}

{{/* The extender's own objects, where it serves a kube-scheduler that is there already. */}}
{{- define "gpumem.extender.fullname" -}}
{{ include "gpumem.fullname" . }}-extender
{{- end -}}

{{- define "gpumem.extender.serviceAccountName" -}}
{{ .Values.scheduler.serviceAccount.name | default (include "gpumem.extender.fullname" .) }}
{{- end -}}

{{/* The Secret with the extender's certificate, its key, and the authority of clients. */}}
{{- define "gpumem.extender.tlsSecretName" -}}
{{ ternary .Values.extender.tls.secretName (printf "%s-tls" (include "gpumem.extender.fullname" .)) (eq .Values.extender.tls.source "secret") }}
{{- end -}}

{{/* The Secret with the certificate that kube-scheduler shows. */}}
{{- define "gpumem.extender.clientSecretName" -}}
{{ include "gpumem.extender.fullname" . }}-client
{{- end -}}

{{/* The names under which the extender is reached, as JSON. */}}
{{- define "gpumem.extender.hosts" -}}
{{- $name := include "gpumem.extender.fullname" . -}}
{{- list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) | toJson -}}
{{- end -}}

{{- define "gpumem.devicePlugin.fullname" -}}
{{ include "gpumem.fullname" . }}-device-plugin
{{- end -}}

{{- define "gpumem.scheduler.serviceAccountName" -}}
{{ .Values.scheduler.serviceAccount.name | default (include "gpumem.scheduler.fullname" .) }}
{{- end -}}

{{- define "gpumem.devicePlugin.serviceAccountName" -}}
{{ .Values.devicePlugin.serviceAccount.name | default (include "gpumem.devicePlugin.fullname" .) }}
{{- end -}}

{{/*
Labels that select pods. They can never change in the life of a release, so
they carry no version. Takes (list $ "component").
*/}}
{{- define "gpumem.selectorLabels" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "gpumem.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/*
Labels of the pods: not the chart's version, or each new chart would replace
all pods, changed or not. Takes (list $ "component").
*/}}
{{- define "gpumem.podLabels" -}}
{{ include "gpumem.selectorLabels" . }}
app.kubernetes.io/part-of: gpumem
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{/* Labels of every object. Takes (list $ "component"). */}}
{{- define "gpumem.labels" -}}
{{- $ := index . 0 -}}
{{ include "gpumem.podLabels" . }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
An image by tag or, for "sha256:…", by digest. image.registry replaces the registries of the
chart's defaults. Takes (list $ image "default tag").
*/}}
{{- define "gpumem.image" -}}
{{- $ := index . 0 -}}
{{- $image := index . 1 -}}
{{- $tag := $image.tag | default (index . 2) -}}
{{- $repository := $image.repository -}}
{{- with (default dict $.Values.image).registry -}}
{{- $repository = regexReplaceAll `^(ghcr\.io/gpumem|registry\.k8s\.io)/` $repository (print . "/") -}}
{{- end -}}
{{- printf "%s%s%s" $repository (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end -}}

{{/*
What a pod of the chart's own needs to be placed on GPUs, pulled and started as
pods of users are: that of "helm test", and the one in the notes.
*/}}
{{- define "gpumem.test.placement" -}}
{{- if ne .Values.scheduler.mode "existing" -}}
schedulerName: {{ .Values.scheduler.schedulerName }}
{{- end }}
{{- with .Values.test.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.devicePlugin.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The taint that the device plugin removes once its node offers GPU memory: StartupTaint of pkg/kube/api/names.go. */}}
{{- define "gpumem.startupTaint" -}}
startup-taint.cluster-autoscaler.kubernetes.io/gpumem
{{- end -}}

{{/* The tolerations of the pods that serve a node's GPUs. */}}
{{- define "gpumem.devicePlugin.tolerations" -}}
- key: {{ include "gpumem.startupTaint" . }}
  operator: Exists
{{- with .Values.devicePlugin.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The tag under which Kubernetes released the kube-scheduler of the cluster's version: the
version without a vendor's suffix (v1.33.1-eks-abc, v1.33.1+k3s1). It is empty if the version
has no patch, as Argo CD passes it (1.34).
*/}}
{{- define "gpumem.kubeVersion" -}}
{{- regexFind `^v?[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.[0-9]+)?` .Capabilities.KubeVersion.Version -}}
{{- end -}}

{{/*
The API version of the policy that sets the scheduler's name. It is empty if the chart
installs no such policy. Without a list of the cluster's kinds, Kubernetes 1.36 or newer is
expected to have it.
*/}}
{{- define "gpumem.mutatingVersion" -}}
{{- $set := toString .Values.admission.setSchedulerName -}}
{{- if and (ne $set "false") (ne .Values.scheduler.mode "existing") -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- $kinds := .Capabilities.APIVersions -}}
{{- if $kinds.Has (print $group "/v1/MutatingAdmissionPolicy") -}}
{{ $group }}/v1
{{- else if $kinds.Has (print $group "/v1beta1/MutatingAdmissionPolicy") -}}
{{ $group }}/v1beta1
{{- else if and (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) (or (eq $set "true") (not ($kinds.Has "v1/Pod"))) -}}
{{ $group }}/v1
{{- else if eq $set "true" -}}
{{- fail (printf "admission.setSchedulerName is true, and the cluster's Kubernetes is %s: mutating admission policies need 1.36, or 1.34 with the API %s/v1beta1 and the feature gate MutatingAdmissionPolicy on." .Capabilities.KubeVersion.Version $group) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Not empty if a pod has not ended and asks for one of the resources. Takes (list pod resource...). */}}
{{- define "gpumem.podAsks" -}}
{{- $pod := first . -}}
{{- $resources := rest . -}}
{{- if not (has (dig "status" "phase" "" $pod) (list "Succeeded" "Failed")) -}}
{{- range $container := concat $pod.spec.containers (dig "spec" "initContainers" list $pod) -}}
{{- range $resources -}}
{{- if ne (dig "resources" "limits" . "0" $container | toString) "0" -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where people write pods that a controller makes: rules of admission policies. */}}
{{- define "gpumem.templatesOfPods" -}}
- apiGroups: [apps]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [deployments, statefulsets, daemonsets]
- apiGroups: [batch]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [jobs, cronjobs]
{{- end -}}

{{/* The resources that the extender decides about. */}}
{{- define "gpumem.managedResources" -}}
{{- range concat (list "gpu-mem") (ternary (list "gpu-share") list .Values.shares.enabled) (ternary (list "gpu-core") list .Values.cores) }}
- name: {{ $.Values.resourceDomain }}/{{ . }}
  # kube-scheduler checks the sum of the node beside the extender, which
  # checks each GPU.
  ignoredByScheduler: false
{{- end }}
{{- end -}}

{{/* What a container may do that needs nothing of the node. */}}
{{- define "gpumem.restrictedSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The flags that the extender and gpumem-scheduler have in common. */}}
{{- define "gpumem.service.args" -}}
- --probe-listen=:8011
{{- if .Values.extender.page }}
- --page
{{- with .Values.extender.clusterName }}
- --cluster-name={{ . }}
{{- end }}
{{- end }}
{{- if .Values.monitoring.podMetrics }}
- --pod-metrics
{{- end }}
- --resource-domain={{ .Values.resourceDomain }}
- --unit-mib={{ int64 .Values.unitMiB }}
- --policy={{ .Values.policy }}
- --node-policy={{ .Values.nodePolicy | default .Values.policy }}
{{- if .Values.labelPods }}
- --label-pods
{{- end }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end -}}

{{/* The flags of the extender that are the same in the modes "extender" and "existing". */}}
{{- define "gpumem.extender.args" -}}
{{ include "gpumem.service.args" . }}
{{- if eq (include "gpumem.mode" .) "extender" }}
- --scheduler-lease={{ .Release.Namespace }}/{{ include "gpumem.scheduler.fullname" . }}
{{- if .Values.scheduler.chooseNode }}
- --choose-node
{{- end }}
{{- end }}
- --kube-api-qps={{ int64 .Values.extender.kubeAPI.qps }}
- --kube-api-burst={{ int64 .Values.extender.kubeAPI.burst }}
{{- range .Values.extender.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* What the extender does. */}}
{{- define "gpumem.extender.rules" -}}
- apiGroups: [""]
  resources: [nodes, pods]
  verbs: [get, list, watch]
# Whom to evict for a pod of higher priority depends on them.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
# One request binds the pod and writes its assignment, so there is no need to
# patch pods.
- apiGroups: [""]
  resources: [pods/binding]
  verbs: [create]
# kube-scheduler tries a waiting pod again when an annotation of it changes. The
# extender writes one, by way of the status, on a pod that fits by now and that
# kube-scheduler does not try by itself.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end -}}

{{/*
Environment by which Go's collector works harder before the container's limit of memory is
met: the limit in MiB with six zeros behind it, 95 % of it in bytes.
*/}}
{{- define "gpumem.memoryLimit" -}}
- name: MEMORY_LIMIT_MIB
  valueFrom:
    resourceFieldRef:
      resource: limits.memory
      divisor: 1Mi
- name: GOMEMLIMIT
  value: $(MEMORY_LIMIT_MIB)000000
{{- end -}}

{{/* All annotations of the domain, by who writes them. */}}
{{- define "gpumem.annotations" -}}
{{- .Files.Get "files/annotations.yaml" -}}
{{- end -}}

{{/* Those that some write, as JSON: (list . WRITER...). */}}
{{- define "gpumem.annotationsBy" -}}
{{- $root := first . -}}
{{- $all := include "gpumem.annotations" $root | fromYaml -}}
{{- $keys := list -}}
{{- range rest . -}}
{{- range get $all . -}}
{{- $keys = append $keys (printf "%s/%s" $root.Values.resourceDomain .name) -}}
{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{/* The labels that gpumem writes on pods, as JSON. */}}
{{- define "gpumem.labelsOfPods" -}}
{{- $keys := list -}}
{{- if .Values.labelPods -}}
{{- range list "model" "percent" "speed" -}}
{{- $keys = append $keys (printf "%s/assigned-%s" $.Values.resourceDomain .) -}}
{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{/* The annotations that gpumem's device plugin writes on pods, as JSON. */}}
{{- define "gpumem.annotationsOfPods" -}}
{{- include "gpumem.annotationsBy" (list . "binding") -}}
{{- end -}}
