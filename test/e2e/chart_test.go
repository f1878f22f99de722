package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/stack"
)

func TestNotesSayHowToCheck(t *testing.T) {
	setup(t)
	for _, want := range []string{"kubectl inspect gpumem", "gpumem-scheduler", "gpumem.dev/gpu-mem"} {
		if !strings.Contains(suite.notes, want) {
			t.Errorf("the notes do not name %q:\n%s", want, suite.notes)
		}
	}
}

// apiOfOthers are the kinds of the Prometheus operator that the chart can make, with
// the fields that it sets.
const apiOfOthers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [selector, podMetricsEndpoints], properties: {
        selector: {type: object, properties: {matchLabels: {type: object, additionalProperties: {type: string}}}},
        podMetricsEndpoints: {type: array, items: {type: object, properties: {port: {type: string}, interval: {type: string}, honorLabels: {type: boolean},
          relabelings: {type: array, items: {type: object, properties: {sourceLabels: {type: array, items: {type: string}}, targetLabel: {type: string}}}}}}}}}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PrometheusRule, plural: prometheusrules}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
`

// Each object that the chart makes, with the values as they come and with each
// file of ci/, is one that the API server would take as it stands.
func TestTheAPIServerTakesWhatTheChartRenders(t *testing.T) {
	e := setup(t)
	e.certManagerAPI()
	e.applyText(apiOfOthers)
	e.Cleanup(func() {
		_, err := suite.stack.Kubectl(context.Background(), e.cluster, "delete", "crd/podmonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com", "runtimeclass/nvidia")
		if err != nil {
			e.Error(err)
		}
	})
	files, err := filepath.Glob(filepath.Join(suite.stack.Chart(), "ci", "*-values.yaml"))
	if err != nil || len(files) < 9 {
		t.Fatalf("%d files with values, %v: want the default and eight more", len(files), err)
	}
	cases := map[string][]string{"existing": {"--set", "scheduler.mode=existing", "--dry-run=server"}, "extender": {"--set", "scheduler.mode=extender"}}
	for _, file := range files {
		cases[filepath.Base(file)] = []string{"--values", file}
	}
	for name, flags := range cases {
		t.Run(name, func(t *testing.T) {
			rendered := filepath.Join(t.TempDir(), "rendered.yaml")
			text, err := suite.stack.Helm(e.ctx, e.cluster, append([]string{"template", "checked", suite.stack.Chart(), "--namespace", e.namespace, "--validate"}, flags...)...)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(rendered, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			took, err := suite.stack.Kubectl(e.ctx, e.cluster, "create", "--dry-run=server", "--validate=strict", "--output=name", "--filename", rendered)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Count(took, "\n"), strings.Count(text, "\nkind: "); got != want {
				t.Errorf("it took %d objects of %d:\n%s", got, want, took)
			}
		})
	}
}

// Every sample is what the API server takes, the policies of the chart included.
func TestTheAPIServerTakesEverySample(t *testing.T) {
	e := setup(t)
	samples, err := filepath.Glob(suite.stack.Sample("*.yaml"))
	if err != nil || len(samples) == 0 {
		t.Fatalf("samples: %v, %v", samples, err)
	}
	for _, sample := range samples {
		switch filepath.Base(sample) {
		case "argocd.yaml", "flux.yaml":
			continue // the cluster has no such API; test/gitops_test.go renders them
		case "kueue.yaml", "priority.yaml", "unreadable.yaml":
			continue // of an API that is not there; of a class that a dry run does not make; to be refused: each has a test
		}
		if _, err := e.kubectl("apply", "--dry-run=server", "--filename", sample); err != nil {
			t.Errorf("%s: %v", filepath.Base(sample), err)
		}
	}
}

// The pods of the control plane are fit for namespaces of the strictest Pod
// Security Standard. The device plugin is not, for no more than these reasons.
func TestPodSecurity(t *testing.T) {
	e := setup(t)
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "label", "namespace", e.namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		t.Fatal(err)
	}
	const becauseOfTheKubelet = `violates PodSecurity "restricted:latest": host namespaces (hostPID=true), ` +
		`unrestricted capabilities (container "gpumem-device-plugin" must not include "SYS_ADMIN" in securityContext.capabilities.add), restricted volume types ` +
		`(volumes "device-plugins", "pod-resources", "nri", "mps", "cgroup", "driver-root" use restricted volume type "hostPath"), ` +
		`runAsNonRoot != true (pod or container "gpumem-device-plugin" must set securityContext.runAsNonRoot=true), ` +
		`runAsUser=0 (container "gpumem-device-plugin" must not set runAsUser=0)`
	for name, tc := range map[string]struct{ flags, refused string }{
		"plugin":   {"scheduler.mode=plugin", becauseOfTheKubelet},
		"extender": {"scheduler.mode=extender", becauseOfTheKubelet},
		"existing": {"scheduler.mode=existing", becauseOfTheKubelet},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := suite.stack.Helm(e.ctx, e.cluster, "template", "checked", suite.stack.Chart(), "--namespace", e.namespace, "--validate", "--dry-run=server", "--set", tc.flags)
			if err != nil {
				t.Fatal(err)
			}
			pods := 0
			for document := range strings.SplitSeq(text, "\n---\n") {
				var owner struct {
					Kind string
					Spec struct{ Template v1.PodTemplateSpec }
				}
				if err := yaml.Unmarshal([]byte(document), &owner); err != nil {
					t.Fatal(err)
				}
				if owner.Kind != "Deployment" && owner.Kind != "DaemonSet" {
					continue
				}
				pods++
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "checked"}, Spec: owner.Spec.Template.Spec}
				pod.Spec.ServiceAccountName, pod.Spec.PriorityClassName = "", ""
				_, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if want := tc.refused; owner.Kind == "DaemonSet" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("the DaemonSet's pod: %v, want it refused because it %s", err, want)
				} else if owner.Kind == "Deployment" && err != nil {
					t.Errorf("the Deployment's pod: %v", err)
				}
			}
			if pods != 2 {
				t.Errorf("%d kinds of pods, want 2", pods)
			}
		})
	}
}

func TestHelmTest(t *testing.T) {
	e := setup(t)
	if out, err := suite.stack.Helm(e.ctx, e.cluster, "test", stack.Release, "--namespace", stack.Namespace, "--timeout", "1m"); err != nil || !strings.Contains(out, "Succeeded") {
		t.Errorf("helm test: %v\n%s", err, out)
	}
}

func (e *env) applyText(text string) {
	e.Helper()
	file := filepath.Join(e.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		e.Fatal(err)
	}
	if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "apply", "--filename", file); err != nil {
		e.Fatal(err)
	}
}
