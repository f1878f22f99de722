package api

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNewNames(t *testing.T) {
	for domain, want := range map[string]string{
		"gpumem.dev":             "",
		"aliyun.com":             "",
		"Not A Domain":           "lower case",
		"":                       "lower case",
		"kubernetes.io":          "keeps kubernetes.io for itself",
		"gpu.kubernetes.io":      "keeps kubernetes.io for itself",
		"notkubernetes.io":       "keeps kubernetes.io for itself", // Kubernetes compares only the end of the text
		"requests.gpumem.dev":    "resource quotas",
		strings.Repeat("a", 250): "must be no more than",
	} {
		_, err := NewNames(domain)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", domain, err, want)
		}
	}
}

// FuzzNewNames checks that in every accepted domain, Kubernetes accepts the resources as extended resources
// and the annotations as qualified names.
func FuzzNewNames(f *testing.F) {
	f.Add("gpumem.dev")
	f.Add("requests.x")
	f.Add("a.kubernetes.io")
	f.Add("-")
	f.Add(strings.Repeat("a", 63) + "." + strings.Repeat("b", 63))
	f.Fuzz(func(t *testing.T, domain string) {
		n, err := NewNames(domain)
		if err != nil {
			return
		}
		// The kubelet's check for resources of device plugins (IsExtendedResourceName in
		// k8s.io/kubernetes/pkg/apis/core/v1/helper).
		for _, name := range []string{string(n.GPUMem()), string(n.GPUCore())} {
			native := !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/")
			if problems := validation.IsQualifiedName("requests." + name); native || strings.HasPrefix(name, "requests.") || len(problems) > 0 {
				t.Errorf("resource %q: native %t, %v", name, native, problems)
			}
		}
		for _, a := range annotations {
			if problems := validation.IsQualifiedName(n.key(a.name)); len(problems) > 0 {
				t.Errorf("annotation %q: %v", n.key(a.name), problems)
			}
		}
	})
}
