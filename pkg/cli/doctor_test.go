package cli_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/table"
)

func TestDoctor(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)))
	client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource("configmaps"), "", errors.New("not for you"))
	})
	stdout, _, err := clirun.Inspect(client, "doctor")
	for _, want := range []string{
		"error   cluster: no device plugin for gpumem.dev is installed\n        helm upgrade --install gpumem",
		"error   cluster: no scheduler for gpumem.dev is installed",
		"note    cluster: not checked, because they could not be listed: configmaps with the names of gpumem's schedulers (configmaps is forbidden: not for you)",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("not a word of %q in:\n%s", want, stdout)
		}
	}
	if err == nil || err.Error() != "2 of 3 findings are errors" {
		t.Errorf("error %v", err)
	}

	stdout, _, _ = clirun.Inspect(client, "doctor", "-o", "json")
	var found table.Items[doctor.Finding]
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || found.Kind != "FindingList" || len(found.Items) != 3 || found.Items[0].Severity != doctor.Error || found.Items[0].Check != "installed" {
		t.Errorf("%v, %+v in:\n%s", err, found, stdout)
	}
	if _, _, err := clirun.Inspect(client, "doctor", "-o", "wide"); err == nil || !strings.Contains(err.Error(), `"wide", want one of json, yaml`) {
		t.Errorf("error %v", err)
	}
	for _, a := range client.Actions() {
		if verb := a.GetVerb(); verb != "get" && verb != "list" {
			t.Errorf("the command did %s %s", verb, a.GetResource())
		}
	}
}

// The check of claims reads the feature gates of the control plane's pods.
func TestDoctorOfClaims(t *testing.T) {
	client := installed(t, time.Now().Add(-time.Hour))
	node := kubetest.Node(t, "claims", kubetest.Inventory("claims", 16))
	node.Labels = map[string]string{"gpumem.dev/api": "claims"}
	scheduler := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler-a", Labels: map[string]string{"component": "kube-scheduler", "tier": "control-plane"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "kube-scheduler", Command: []string{"kube-scheduler", "--feature-gates=DRAConsumableCapacity=false"}}}},
	}
	for _, o := range []runtime.Object{node, scheduler} {
		if err := client.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	stdout, _, _ := clirun.Inspect(client, "doctor")
	if want := "error   pod kube-system/kube-scheduler-a: has the feature gate DRAConsumableCapacity off, but claims need it\n"; !strings.Contains(stdout, want) {
		t.Errorf("not a word of %q in:\n%s", want, stdout)
	}
}

// The text output merges the same fault of many nodes into one line. JSON has one finding for each node.
func TestDoctorOfManyNodesThatAreDown(t *testing.T) {
	client := installed(t, time.Now().Add(-time.Hour))
	for _, name := range []string{"down-a", "down-b", "down-c", "down-d", "down-e"} {
		node := kubetest.Node(t, name, kubetest.Inventory(name, 16))
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "no word of it"}}
		if err := client.Tracker().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	stdout, _, err := clirun.Inspect(client, "doctor")
	want := "error   5 × node down-a, down-b, down-c and 2 more: is NotReady: NodeStatusUnknown: no word of it\n" +
		"        kubectl describe node NODE shows the reason; its GPUs take no new pods until it is Ready\n"
	if stdout != want || err == nil || err.Error() != "5 of 5 findings are errors" {
		t.Errorf("%v, want:\n%sgot:\n%s", err, want, stdout)
	}
	stdout, _, _ = clirun.Inspect(client, "doctor", "-o", "jsonpath={range .items[*]}{.object}: {.fix}\n{end}")
	if got := strings.Count(stdout, "node down-"); got != 10 || !strings.Contains(stdout, "node down-e: kubectl describe node down-e shows the reason") {
		t.Errorf("%d names in:\n%s", got, stdout)
	}
}

// The doctor reads pods that the kubelet rejected, unlike other ended pods.
func TestDoctorListsRejectedPods(t *testing.T) {
	client := installed(t, time.Now().Add(-time.Hour))
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := kubetest.With(kubetest.Pod(t, "ml/dead", "gpu-a", 2), func(p *v1.Pod) {
			p.Annotations = nil
			p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "UnexpectedAdmissionError"}
		})
		if list, ok := action.(clienttesting.ListAction); !ok || !list.GetListRestrictions().Fields.Matches(fields.Set{"status.phase": string(v1.PodFailed)}) {
			return false, nil, nil
		}
		return true, &v1.PodList{Items: []v1.Pod{*pod}}, nil
	})
	stdout, _, _ := clirun.Inspect(client, "doctor")
	if want := "pod ml/dead: 1 pods with GPU memory are scheduled without asking gpumem"; !strings.Contains(stdout, want) || !strings.Contains(stdout, "the kubelet rejected 1\n") {
		t.Errorf("no %q in:\n%s", want, stdout)
	}
}

// If no API server answers, doctor prints no findings, and returns the error at once, even with --wait.
func TestDoctorWithoutACluster(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("get", "version", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("dial tcp 127.0.0.1:8080: connect: connection refused")
	})
	stdout, _, err := clirun.Inspect(client, "doctor", "--wait")
	if want := "the API server does not answer: dial tcp 127.0.0.1:8080: connect: connection refused"; stdout != "" || err == nil || err.Error() != want {
		t.Errorf("error %v, want %q; printed:\n%s", err, want, stdout)
	}
}

// installed returns a healthy cluster in which gpumem was installed at the given time.
func installed(t *testing.T, at time.Time) *fake.Clientset {
	meta := func(component string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-" + component, CreationTimestamp: metav1.NewTime(at), Labels: map[string]string{
			"app.kubernetes.io/part-of": "gpumem", "app.kubernetes.io/component": component, "app.kubernetes.io/instance": "gpumem",
		}}
	}
	selector := func(component string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/component": component}}
	}
	program := func(name string) v1.PodTemplateSpec {
		return v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Name: name, Args: []string{"--resource-domain=gpumem.dev"}}}}}
	}
	config := clitest.SchedulerConfig()
	config.Name = "gpumem-scheduler"
	return fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16)), config,
		&appsv1.DaemonSet{
			ObjectMeta: meta("device-plugin"), Spec: appsv1.DaemonSetSpec{Selector: selector("device-plugin"), Template: program("gpumem-device-plugin")},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: 1},
		},
		&v1.Pod{ObjectMeta: meta("device-plugin"), Spec: v1.PodSpec{NodeName: "gpu-a"}, Status: v1.PodStatus{
			Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		}},
		&appsv1.Deployment{
			ObjectMeta: meta("scheduler"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selector("scheduler"), Template: program("gpumem-extender")},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 2},
		},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta("device-plugin")},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta("device-plugin"), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "gpumem-device-plugin", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta("hold-annotations")},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta("hold-annotations"), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "gpumem-hold-annotations", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}},
	)
}

// Directly after an installation, doctor notes that it cannot check the workloads yet. With --wait, it waits
// and checks them.
func TestDoctorJustAfterAnInstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := installed(t, time.Now().Add(-20*time.Second))
		const note = "note    cluster: not checked, because they are younger than 60s: " +
			"daemonset gpumem-system/gpumem-device-plugin, deployment gpumem-system/gpumem-scheduler, pod gpumem-system/gpumem-device-plugin\n" +
			"        repeat the command in 60s, or add --wait\n"
		for _, tc := range []struct {
			args           []string
			stdout, stderr string
		}{
			{[]string{"doctor"}, note + "No problem found in the other checks.\n", ""},
			{[]string{"doctor", "--wait"}, "No problem found.\n", "Waiting 40s, until all workloads can be checked\n"},
			{[]string{"doctor", "--wait"}, "No problem found.\n", ""},
		} {
			stdout, stderr, err := clirun.Inspect(client, tc.args...)
			if err != nil || stdout != tc.stdout || stderr != tc.stderr {
				t.Errorf("%q: error %v, stderr %q, stdout:\n%swant %q and:\n%s", tc.args, err, stderr, stdout, tc.stderr, tc.stdout)
			}
		}
	})
}
