package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/policies"
)

// dryRun creates a pod as far as the API server does before it stores it.
func (e *env) dryRun(pod *v1.Pod) (*v1.Pod, error) {
	return e.client.CoreV1().Pods(pod.Namespace).Create(e.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func setting(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Env = append(pod.Spec.Containers[i].Env, v1.EnvVar{Name: "PATH_OF_MINE", Value: "/"}, v1.EnvVar{Name: name, Value: "all"})
		}
	}
}

// without asks for no GPU memory.
func without(pod *v1.Pod) {
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources = v1.ResourceRequirements{}
	}
}

// TestReservedNames sends the cases of the policy to the API server.
func TestReservedNames(t *testing.T) {
	e := setup(t)
	table, err := policies.Load[v1.Pod](suite.stack.Chart(), "reserved-names")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range table.Cases {
		request := func() error {
			c.Is.Namespace = e.namespace
			_, err := e.dryRun(c.Is)
			return err
		}
		if c.Was != nil {
			c.Was.Namespace, c.Was.Name, c.Was.Spec.SchedulerName = e.namespace, fmt.Sprint("debugged-", i), "nobody"
			pod := e.create(c.Was)
			request = func() error {
				return e.debug(pod, func(debugger *v1.EphemeralContainerCommon) {
					*debugger = c.Is.Spec.EphemeralContainers[0].EphemeralContainerCommon
				})
			}
		}
		e.eventually(c.Name, func() (bool, string) {
			err := request()
			if c.Refused == "" {
				return err == nil, fmt.Sprint(err)
			}
			return err != nil && strings.Contains(err.Error(), c.Refused), fmt.Sprint(err)
		})
	}
}

// debug gives a pod an ephemeral container, as kubectl debug does.
func (e *env) debug(pod *v1.Pod, change func(*v1.EphemeralContainerCommon)) error {
	pod = pod.DeepCopy()
	c := v1.EphemeralContainerCommon{Name: "debugger", Image: "i"}
	change(&c)
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: c}}
	_, err := e.client.CoreV1().Pods(e.namespace).UpdateEphemeralContainers(e.ctx, pod.Name, pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func namingAll(c *v1.EphemeralContainerCommon) {
	c.Env = []v1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
}

// createWith makes a pod with an annotation that the API server would have
// refused at its creation: it is written while a gate holds the pod back.
func (e *env) createWith(name string, units int64, key, value string) {
	e.Helper()
	e.create(e.pod(name, units, func(pod *v1.Pod) {
		pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "gpumem.dev/test"}}
	}))
	e.patchPod(name, "gpumem.dev/"+key, value)
	if _, err := e.client.CoreV1().Pods(e.namespace).Patch(e.ctx, name, types.JSONPatchType, []byte(`[{"op": "remove", "path": "/spec/schedulingGates"}]`), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

// warnings keeps what the API server warns of.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestTheAPIServerWarnsOfNamesWithoutEffect: where a name of gpumem's domain does
// nothing, whoever writes it is told, and the object is made all the same.
func TestTheAPIServerWarnsOfNamesWithoutEffect(t *testing.T) {
	e := setup(t)
	var told warnings
	config, err := e.cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.WarningHandler = &told
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	labelled := func(pod *v1.Pod) { pod.Labels = map[string]string{"gpumem.dev/policy": "spread", "app": "a"} }
	owned := func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "u"}}
	}
	deployment := func(annotations map[string]string, change ...func(*v1.Pod)) *appsv1.Deployment {
		pod := e.pod("p", 1, change...)
		pod.Labels = map[string]string{"app": "a"}
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "d", Annotations: annotations},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
				Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
			},
		}
	}
	inBytes := func(pod *v1.Pod) {
		amount := v1.ResourceList{gpuMem: resource.MustParse("2.5Gi")}
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: amount, Requests: amount}
	}
	const notBytes = "container main: gpumem.dev/gpu-mem is 2560Mi: write 3, the unit is 1 GiB"
	always := func(pod *v1.Pod) { pod.Spec.RestartPolicy = v1.RestartPolicyAlways }
	unnamed := func(pod *v1.Pod) { pod.Spec.SchedulerName = "" }
	const bypasses = "gpumem.dev/gpu-mem without schedulerName gpumem-scheduler: the cluster's own scheduler knows the sum of a node's GPUs alone, and the pod may fail on its node"
	const misspelt = "annotation gpumem.dev/gpu-cuont is unknown to gpumem and has no effect; did you mean gpumem.dev/gpu-count?"
	const noResource = "resource gpumem.dev/gpu-memory is unknown to gpumem: the pod stays Pending; ask for gpumem.dev/gpu-mem"
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	warns := func(name, policy string, object any, want string) {
		t.Helper()
		e.eventually(name, func() (bool, string) {
			told = nil
			var err error
			switch object := object.(type) {
			case *v1.Pod:
				_, err = client.CoreV1().Pods(e.namespace).Create(e.ctx, object, dryRun)
			case *appsv1.Deployment:
				_, err = client.AppsV1().Deployments(e.namespace).Create(e.ctx, object, dryRun)
			case *v1.ResourceQuota:
				_, err = client.CoreV1().ResourceQuotas(e.namespace).Create(e.ctx, object, dryRun)
			}
			said := strings.Join(told, "\n")
			return err == nil && strings.HasSuffix(said, want) && (want != "") == strings.Contains(said, policy), fmt.Sprint(err, said)
		})
	}
	for name, tc := range map[string]struct {
		object any
		want   string // empty: no warning
	}{
		"a pod with all that is right": {e.pod("p", 1, annotated("policy", "spread"), annotated("gpu-group", "a")), ""},
		"a template with what gpumem writes": {
			deployment(nil, always, annotated("gpu-index", "1")), "annotation gpumem.dev/gpu-index is written by gpumem, and pods with it are refused: gpumem.dev/gpu-uuid chooses a GPU",
		},
		"a pod with a misspelt name":   {e.pod("p", 1, annotated("gpu-cuont", "2")), misspelt},
		"one that a controller makes":  {e.pod("p", 1, annotated("gpu-cuont", "2"), owned), ""},
		"an annotation and no request": {e.pod("p", 0, annotated("policy", "exclusive")), "annotation gpumem.dev/policy has no effect: no container asks for gpumem.dev/gpu-mem"},
		"a label":                      {e.pod("p", 1, labelled), "label gpumem.dev/policy has no effect: gpumem reads annotations of pods"},
		"a pod for another scheduler":  {e.pod("p", 1, func(pod *v1.Pod) { pod.Spec.SchedulerName = "volcano" }), ""},
		"a pod for one that is misspelt": {
			e.pod("p", 1, func(pod *v1.Pod) { pod.Spec.SchedulerName = "gpumem-schedular" }), "no scheduler of gpumem has the name gpumem-schedular: did you mean gpumem-scheduler?",
		},
		"a misspelt resource":         {e.pod("p", 1, asking("gpumem.dev/gpu-memory", 1)), noResource},
		"one of a template":           {deployment(nil, always, without, asking("gpumem.dev/gpu-memory", 1)), noResource},
		"cores":                       {e.pod("p", 1, asking("gpumem.dev/gpu-core", 1)), ""},
		"a pod of a node":             {e.pod("p", 1, unnamed, func(pod *v1.Pod) { pod.Spec.NodeName = "node1" }), ""},
		"a pod for no scheduler":      {e.pod("p", 1, unnamed), bypasses},
		"a template for no scheduler": {deployment(nil, always, unnamed), bypasses},
		"one without GPU memory":      {e.pod("p", 0, unnamed), ""},
		"a deployment that is right":  {deployment(map[string]string{"note": "n"}, always, annotated("gpu-count", "1")), ""},
		"a template with a misspelt name": {
			deployment(nil, always, annotated("gpu-cuont", "2")), misspelt,
		},
		"an annotation beside the template": {
			deployment(map[string]string{"gpumem.dev/gpu-count": "2"}, always),
			"annotation gpumem.dev/gpu-count has no effect here: move it to the metadata of the template",
		},
	} {
		warns(name, "gpumem-names", tc.object, tc.want)
	}
	warns("a template with a wrong value", "gpumem-annotations", deployment(nil, always, annotated("policy", "binpak")),
		`annotation gpumem.dev/policy: "binpak": want binpack, spread or exclusive`)
	warns("a template that asks in bytes", "gpumem-annotations", deployment(nil, always, inBytes), notBytes)
	if _, err := e.dryRun(e.pod("p", 1, inBytes)); err == nil || !strings.Contains(err.Error(), notBytes) {
		t.Errorf("a pod that asks in bytes: %v", err)
	}
	warns("a quota that limits nothing", "gpumem-quotas", &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{gpuMem: resource.MustParse("10")}},
	}, "gpumem.dev/gpu-mem limits nothing in a ResourceQuota: write requests.gpumem.dev/gpu-mem")
}

// TestTheAPIServerRefusesWhatTheExtenderCannotRead: the policy takes and refuses
// the same values as the extender, which pkg/kube/api tests with the same table, and
// says what it wants.
func TestTheAPIServerRefusesWhatTheExtenderCannotRead(t *testing.T) {
	e := setup(t)
	text, err := os.ReadFile("../../pkg/kube/api/testdata/annotations.json")
	if err != nil {
		t.Fatal(err)
	}
	var table map[string]struct {
		Want           string
		Taken, Refused []string
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	for key, tc := range table {
		t.Run(key, func(t *testing.T) {
			for _, value := range tc.Taken {
				if _, err := e.dryRun(e.pod("p", 64, annotated(key, value))); err != nil {
					t.Errorf("%q: %v", value, err)
				}
			}
			for _, value := range tc.Refused {
				want := fmt.Sprintf("annotation gpumem.dev/%s: \"%s\": want %s", key, value, tc.Want)
				if strings.Contains(value, "\n") { // no message of the API server has one
					want = fmt.Sprintf("annotation gpumem.dev/%s: want %s", key, tc.Want)
				}
				if _, err := e.dryRun(e.pod("p", 64, annotated(key, value))); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%q: the API server says %v, want %s", value, err, want)
				}
				if _, err := e.dryRun(e.pod("p", 1, without, annotated(key, value))); err != nil {
					t.Errorf("%q of a pod without GPU memory: %v", value, err)
				}
			}
		})
	}

	for value, taken := range map[string]bool{
		strings.Repeat("x", 1024): true, strings.Repeat("x", 1025): false, strings.Repeat("é", 512): true, strings.Repeat("é", 513): false,
		strings.Repeat("x,", 31) + "x": true, strings.Repeat("x,", 32) + "x": false,
	} {
		if _, err := e.dryRun(e.pod("p", 1, annotated("gpu-model", value))); err == nil != taken {
			t.Errorf("globs of %d bytes: %v", len(value), err)
		}
	}
	none := e.pod("p", 0, annotated("gpu-count", "two"), asking(gpuMem, 0))
	if _, err := e.dryRun(none); err != nil {
		t.Errorf("a pod that asks for no unit of it: %v", err)
	}
	_, err = e.kubectl("apply", "--filename", suite.stack.Sample("unreadable.yaml"))
	if want := `annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the sample: %v", err)
	}
}

// TestAPolicyThatFailsStopsNoOtherPods: one whose validation cannot be evaluated
// refuses pods that ask for GPU memory, and is not heard of others.
func TestAPolicyThatFailsStopsNoOtherPods(t *testing.T) {
	e := setup(t)
	const policy = "gpumem-reserved-names"
	policies := e.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	was, err := policies.Get(e.ctx, policy, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.atEnd(func() {
		now, err := policies.Get(e.ctx, policy, metav1.GetOptions{})
		if err == nil {
			now.Spec.Validations = was.Spec.Validations
			_, err = policies.Update(e.ctx, now, metav1.UpdateOptions{})
		}
		if err != nil {
			e.Errorf("repair the policy: %v", err)
		}
		e.eventually("the policy works again", func() (bool, string) {
			_, err := e.dryRun(e.pod("p", 1))
			return err == nil, fmt.Sprint(err)
		})
	})
	patch := `[{"op": "replace", "path": "/spec/validations", "value": [{"expression": "object.spec.containers[99].name == 'x'"}]}]`
	if _, err := policies.Patch(e.ctx, policy, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the policy fails", func() (bool, string) {
		_, err := e.dryRun(e.pod("p", 1))
		return err != nil && strings.Contains(err.Error(), "index out of bounds"), fmt.Sprint(err)
	})
	if _, err := e.dryRun(e.pod("p", 1, without, setting("NVIDIA_VISIBLE_DEVICES"))); err != nil {
		t.Errorf("a pod that asks for no GPU memory: %v", err)
	}
}

// TestOptionalPolicies: pods that ask for no GPU do not get one by its name, and
// pods that ask for GPU memory get their scheduler.
func TestOptionalPolicies(t *testing.T) {
	e := setup(t)
	var rendered string
	for _, policy := range []string{"guard-gpus", "scheduler-name"} {
		text, err := suite.stack.Render(e.ctx, e.cluster, "templates/admission/"+policy+".yaml",
			"fullnameOverride=optional", "admission.guardGPUs=true", "admission.setSchedulerName=auto")
		if err != nil {
			t.Fatal(err)
		}
		rendered += text
	}
	if err := suite.stack.Apply(e.ctx, e.cluster, rendered); err != nil {
		t.Fatal(err)
	}
	e.atEnd(func() {
		if err := suite.stack.Delete(e.ctx, e.cluster, rendered); err != nil {
			e.Errorf("delete the policies: %v", err)
		}
		e.eventually("the policies are gone", func() (bool, string) {
			pod, err := e.dryRun(e.pod("p", 1, unscheduled))
			return err == nil && pod.Spec.SchedulerName == v1.DefaultSchedulerName, fmt.Sprint(err)
		})
	})

	e.eventually("a pod that asks for no GPU cannot name one", func() (bool, string) {
		_, err := e.dryRun(e.pod("p", 1, without, setting("NVIDIA_VISIBLE_DEVICES")))
		return err != nil && strings.Contains(err.Error(), "container main sets NVIDIA_VISIBLE_DEVICES and the pod asks for no GPU: ask for gpumem.dev/gpu-mem"), fmt.Sprint(err)
	})
	const refused = " sets NVIDIA_VISIBLE_DEVICES and the pod asks for no GPU"
	_, err := e.dryRun(e.pod("p", 1, without, func(pod *v1.Pod) {
		pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.annotations['gpus']"}}}}
	}))
	if err == nil || !strings.Contains(err.Error(), "container main"+refused) {
		t.Errorf("a value that stands elsewhere: %v", err)
	}
	debugged := e.create(e.pod("debugged", 1, without, func(pod *v1.Pod) { pod.Spec.SchedulerName = "nobody" }))
	if err := e.debug(debugged, namingAll); err == nil || !strings.Contains(err.Error(), "container debugger"+refused) {
		t.Errorf("an ephemeral container that names all GPUs: %v", err)
	}
	if err := e.debug(debugged, func(*v1.EphemeralContainerCommon) {}); err != nil {
		t.Errorf("an ephemeral container: %v", err)
	}
	for name, change := range map[string]func(*v1.Pod){
		"nothing of the kind": without,
		"none": func(pod *v1.Pod) {
			without(pod)
			pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}}
		},
		"a whole GPU": func(pod *v1.Pod) {
			setting("NVIDIA_VISIBLE_DEVICES")(pod)
			asking("nvidia.com/gpu", 1)(pod)
		},
		"in an exempt namespace": func(pod *v1.Pod) {
			without(pod)
			setting("NVIDIA_VISIBLE_DEVICES")(pod)
			pod.Namespace = "kube-system"
		},
	} {
		if _, err := e.dryRun(e.pod("p", 1, change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	e.eventually("a pod that asks for GPU memory gets the scheduler", func() (bool, string) {
		pod, err := e.dryRun(e.pod("p", 1, unscheduled))
		return err == nil && pod.Spec.SchedulerName == "gpumem-scheduler", fmt.Sprint(err)
	})
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		want   string
	}{
		"without GPU memory": {func(pod *v1.Pod) { unscheduled(pod); without(pod) }, v1.DefaultSchedulerName},
		"of its own choice":  {func(pod *v1.Pod) { pod.Spec.SchedulerName = "other" }, "other"},
		"on a node":          {func(pod *v1.Pod) { unscheduled(pod); pod.Spec.NodeName = "node1" }, v1.DefaultSchedulerName},
	} {
		pod, err := e.dryRun(e.pod("p", 1, tc.change))
		if err != nil || pod.Spec.SchedulerName != tc.want {
			t.Errorf("%s: scheduler %q, %v; want %s", name, pod.Spec.SchedulerName, err, tc.want)
		}
	}
}

func unscheduled(pod *v1.Pod) { pod.Spec.SchedulerName = "" }
