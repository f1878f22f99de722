{{- /*
gpumem.cel returns, as JSON, the CEL expressions and names that several admission policies
share. A match condition of each policy selects the pods that ask for GPU memory, so a policy
that cannot be evaluated stops no other pod.
*/ -}}
{{- define "gpumem.cel" -}}
{{- $domain := printf "%s/" .Values.resourceDomain -}}
{{- /* A container that asks for 0, as a LimitRange sets it, asks for none. The API server refuses a request without a limit. */ -}}
{{- $asksForMem := printf "c.?resources.?limits[?'%sgpu-mem'].orValue('0') != '0'" $domain -}}
{{- $asksForShare := printf "c.?resources.?limits[?'%sgpu-share'].orValue('0') != '0'" $domain -}}
{{- $asksForCore := printf "c.?resources.?limits[?'%sgpu-core'].orValue('0') != '0'" $domain -}}
{{- $asks := $asksForMem -}}
{{- if .Values.shares.enabled -}}
{{- $asks = printf "(%s || %s)" $asksForMem $asksForShare -}}
{{- end -}}
{{- /* A pod, or the template of pods in a workload. */ -}}
{{- $template := "object.?spec.?jobTemplate.?spec.?template.or(object.?spec.?template)" -}}
{{- $pod := printf "%s.orValue(object)" $template -}}
{{- $unitMiB := int64 .Values.unitMiB -}}
{{- dict
  "containers" "(object.spec.containers + object.spec.?initContainers.orValue([]))"
  "asksForMem" $asksForMem
  "asksForShare" $asksForShare
  "asksForCore" $asksForCore
  "asks" $asks
  "oneAsks" (printf "exists(c, %s)" $asks)
  "template" $template
  "pod" $pod
  "podContainers" (printf "(%[1]s.?spec.?containers.orValue([]) + %[1]s.?spec.?initContainers.orValue([]))" $pod)
  "domain" $domain
  "resource" (printf "%sgpu-mem" $domain)
  "unit" (ternary (printf "%d MiB" $unitMiB) (printf "%d GiB" (div $unitMiB 1024)) (ne (mod $unitMiB 1024) 0))
  | toJson }}
{{- end }}
