package cli_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clirun"
	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// tenants returns a cluster with two namespaces. The user may read only namespace ml.
func tenants(t *testing.T) *fake.Clientset {
	t.Helper()
	waits := kubetest.With(kubetest.Pod(t, "ml/waits", "", 30), func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Message: "0/1 nodes are available: 1 node(s) unfit: the pod needs 30 GiB on one GPU; free: GPU0 9"}}
	})
	runs := kubetest.With(kubetest.Pod(t, "ml/runs", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-index"] = "1" })
	quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "gpus"}, Status: v1.ResourceQuotaStatus{
		Hard: v1.ResourceList{"requests.gpumem.dev/gpu-mem": resource.MustParse("12")},
		Used: v1.ResourceList{"requests.gpumem.dev/gpu-mem": resource.MustParse("5")},
	}}
	misspelt := kubetest.With(kubetest.Pod(t, "ml/misspelt", "", 3), func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-memory": resource.MustParse("3")}
	})
	typo := kubetest.With(kubetest.Pod(t, "ml/typo", "", 3), func(p *v1.Pod) {
		p.Spec.SchedulerName, p.Status.Conditions = "gpumem-schedular", nil
	})
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)), runs, waits, misspelt, typo, quota,
		kubetest.Pod(t, "secret/other", "gpu-a", 5, kubetest.UUID("gpu-a", 0)))
	clitest.OnlyIn(client, "ml")
	return client
}

// A user who may read only one namespace gets an answer from its objects, with a note about the missing parts.
func TestOneNamespaceIsEnough(t *testing.T) {
	const unseen = "note: not shown, because you lack the right: nodes and their free memory, pods outside namespace ml"
	for name, tc := range map[string]struct {
		args   []string
		want   []string
		stderr string
		code   int
	}{
		"a pod that waits": {
			[]string{"explain", "-n", "ml", "waits"},
			[]string{"Pod ml/waits waits, and its scheduler says: 0/1 nodes are available: 1 node(s) unfit: the pod needs 30 GiB on one GPU; free: GPU0 9\n"}, unseen, 0,
		},
		"a pod that runs": {
			[]string{"explain", "-n", "ml", "runs"},
			[]string{"Pod ml/runs is on a node that scheduler default-scheduler chose", "Node:      gpu-a\n", "GPU:       1\n"}, unseen, 0,
		},
		"pods": {
			[]string{"pods", "-n", "ml"},
			[]string{"ml         runs      gpu-a   1       5u", "ml         waits     <none>  <none>  <none>"}, unseen + ", usage", 0,
		},
		"a misspelt resource": {
			[]string{"explain", "-n", "ml", "misspelt"},
			[]string{"Pod ml/misspelt waits: it asks for gpumem.dev/gpu-memory, which no node offers: gpumem does not know it (did you mean gpumem.dev/gpu-mem?)\n"}, unseen, 0,
		},
		"a misspelt resource, in a list": {[]string{"pods", "-n", "ml", "--waiting"}, []string{"did you mean gpumem.dev/gpu-mem?"}, unseen, 0},
		"a misspelt scheduler": {
			[]string{"explain", "-n", "ml", "typo"},
			[]string{`its schedulerName is "gpumem-schedular", and no scheduler has considered it: did you mean gpumem-scheduler?`, "To do:     set spec.schedulerName to the name of gpumem's scheduler"}, unseen, 0,
		},
		"why pods wait": {[]string{"pods", "-n", "ml", "--waiting"}, []string{"1 node(s) unfit: the pod needs 30 GiB on one GPU; free: GPU0 9"}, unseen, 0},
		"top":           {[]string{"top", "-n", "ml"}, []string{"runs"}, unseen + ", usage", 0},
		"a pod that may fit": {
			[]string{"fit", "-n", "ml", "--mem", "7"},
			[]string{"ResourceQuota ml/gpus leaves 7 of 12 requests.gpumem.dev/gpu-mem\n"}, unseen, cmdutil.ExitUnknown,
		},
		"a pod that a quota refuses": {[]string{"fit", "-n", "ml", "--mem", "8"}, []string{"leaves 7 of 12"}, unseen, 1},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := clirun.Inspect(tenants(t), tc.args...)
			if code := cmdutil.ExitCode(err); code != tc.code {
				t.Errorf("exit code %d, want %d: %v", code, tc.code, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("no %q in:\n%s", want, stdout)
				}
			}
			if !strings.HasPrefix(stderr, tc.stderr) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("want one line on stderr that begins with %q, got:\n%s", tc.stderr, stderr)
			}
			if strings.Contains(stdout, "other") || strings.Contains(stdout, "would fit") || strings.Contains(stdout, "gone") {
				t.Errorf("it says what it cannot know:\n%s", stdout)
			}
		})
	}
}

// A user who may see all nodes and pods, but not the configuration of gpumem's scheduler, gets the same
// remedy for a wrong schedulerName as a user with fewer rights.
func TestAWrongSchedulerWithoutTheRightToConfigMaps(t *testing.T) {
	const remedy = "To do:     set spec.schedulerName to the name of gpumem's scheduler (gpumem-scheduler by default; the pod has gpumem), and recreate the pod\n"
	for name, tc := range map[string]struct {
		scheduler string
		units     int64
		permitted bool // to list ConfigMaps
		want      bool
	}{
		"the pod fits":                  {"gpumem", 3, false, true},
		"the pod fits nowhere":          {"gpumem", 30, false, true},
		"the free memory is fragmented": {"gpumem", 12, false, true},
		"gpumem's default":              {"gpumem-scheduler", 3, false, false},
		"the names can be read":         {"gpumem", 3, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := kubetest.With(kubetest.Pod(t, "team/badsched", "", tc.units), func(p *v1.Pod) { p.Spec.SchedulerName, p.Status.Conditions = tc.scheduler, nil })
			client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)), clitest.SchedulerConfig(), pod,
				kubetest.Pod(t, "ml/a", "gpu-a", 8, kubetest.UUID("gpu-a", 0)), kubetest.Pod(t, "ml/b", "gpu-a", 8, kubetest.UUID("gpu-a", 1)))
			if !tc.permitted {
				clitest.Forbid(client, "configmaps")
			}
			stdout, _, err := clirun.Inspect(client, "explain", "-n", "team", "badsched")
			if err != nil || strings.Contains(stdout, remedy) != tc.want {
				t.Errorf("error %v, remedy %q wanted: %t, in:\n%s", err, remedy, tc.want, stdout)
			}
		})
	}
}

// If the user may not read the scheduler's decisions, the note lists them briefly and has their own remedy.
func TestTheDecisionsOfAnotherNamespace(t *testing.T) {
	const decisions = "Decisions need the right to create pods/portforward in namespace gpumem-system, which is for administrators.\n"
	for name, tc := range map[string]struct {
		client *fake.Clientset
		want   string
	}{
		"nothing else is refused": {
			func() *fake.Clientset {
				client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)), kubetest.Pod(t, "ml/waits", "", 30), clitest.ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"))
				clitest.Forbid(client, "replicasets")
				return client
			}(),
			"note: not shown, because you lack the right: decisions. " + decisions,
		},
		"all else is refused too": {
			tenants(t),
			"note: not shown, because you lack the right: nodes and their free memory, pods outside namespace ml, decisions. " +
				"Ask for the ClusterRole gpumem-viewer; usage needs the Role of the same name too. " + decisions,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, stderr, err := clirun.Inspect(tc.client, "explain", "-n", "ml", "waits"); err != nil || stderr != tc.want {
				t.Errorf("error %v, want on stderr %q, got %q", err, tc.want, stderr)
			}
		})
	}
}

// A tenant sees the usage that the device plugin recorded on the pod, without access to the plugin.
func TestTheUseOfATenantsPods(t *testing.T) {
	client := tenants(t)
	pod, err := client.CoreV1().Pods("ml").Get(t.Context(), "runs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations[kubetest.Names(t).Used()] = `{"usedMiB":1024,"peakMiB":2048,"time":"2026-11-01T12:00:00Z"}`
	if _, err := client.CoreV1().Pods("ml").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := clirun.Inspect(client, "top", "-n", "ml", "--no-headers")
	if want := "1024  2048"; err != nil || !strings.Contains(stdout, want) || strings.Contains(stderr, ", usage") {
		t.Errorf("error %v, no %q in:\n%s\nstderr:\n%s", err, want, stdout, stderr)
	}
}

// A user who may watch only one namespace sees its changes.
func TestAWatchOfOneNamespace(t *testing.T) {
	client := tenants(t)
	out, stop := clirun.Watch(t, client, "pods", "-n", "ml", "-w", "--no-headers")
	out.Until(t, "waits")
	pods := client.CoreV1().Pods("ml")
	if _, err := pods.Create(t.Context(), kubetest.With(kubetest.Pod(t, "ml/new", "gpu-a", 3, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-index"] = "1" }), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "new")
	if err := pods.Delete(t.Context(), "runs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "Ended")
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("not now") })
	if err := pods.Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.Until(t, "not now")
	stop()
	if got := strings.Count(out.Text(), "Ended"); got != 1 {
		t.Errorf("%d pods have ended, want one: the others could not be listed\n%s", got, out.Text())
	}
}

// explain names the old pods of a rolling update also if the user may not list nodes, and suggests to
// delete them first if they have enough memory.
func TestWhatIsInTheWayOfATenant(t *testing.T) {
	of := func(pod *v1.Pod, hash string) *v1.Pod {
		pod.Labels = map[string]string{"pod-template-hash": hash}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-" + hash, Controller: new(true)}}
		return pod
	}
	old := func(name, node string, units int64) *v1.Pod {
		return of(kubetest.With(kubetest.Pod(t, name, node, units, kubetest.UUID(node, 1)), func(p *v1.Pod) { p.Annotations["gpumem.dev/gpu-index"] = "1" }), "old")
	}
	const said = "Replaces:  ml/web-a on gpu-a: 9 units; ml/web-b on gpu-b: 2 units; it is unknown whether the pod fits without them"
	for name, tc := range map[string]struct {
		asks int64
		want string
		not  string
	}{
		"they have as much": {asks: 9, want: said + ". They belong to the previous revision of Deployment web"},
		"they have less":    {asks: 10, want: said + "\n", not: "maxSurge"},
	} {
		client := tenants(t)
		for _, pod := range []*v1.Pod{old("ml/web-a", "gpu-a", 9), old("ml/web-b", "gpu-b", 2), of(kubetest.Pod(t, "ml/web-new", "", tc.asks), "new")} {
			if _, err := client.CoreV1().Pods("ml").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		stdout, _, err := clirun.Inspect(client, "explain", "-n", "ml", "web-new")
		if err != nil || !strings.Contains(stdout, tc.want) || tc.not != "" && strings.Contains(stdout, tc.not) {
			t.Errorf("%s: error %v, want %q, and not %q, in:\n%s", name, err, tc.want, tc.not, stdout)
		}
	}
}

// An error about a missing right names an alternative.
func TestWhatATenantMayDoInstead(t *testing.T) {
	const instead = "; the ClusterRole gpumem-viewer lets you list nodes; explain, pods and top work for one namespace (-n) without it"
	for name, tc := range map[string]struct {
		args []string
		want string // part of the output or of the error
		not  string
	}{
		"nodes":                     {args: []string{"nodes"}, want: instead},
		"no command":                {args: nil, want: instead},
		"details of one namespace":  {args: []string{"-d", "-n", "ml"}, want: instead},
		"gpus":                      {args: []string{"gpus"}, want: instead},
		"pods elsewhere":            {args: []string{"pods", "-n", "secret"}, want: "name a namespace that you may read with -n", not: "namespace secret only"},
		"pods, where no cores are":  {args: []string{"pods", "-n", "ml"}, want: ", usage. Ask for the ClusterRole gpumem-viewer", not: "GPU-CORE"},
		"waiting pods":              {args: []string{"pods", "-n", "ml", "--waiting"}, want: "pods outside namespace ml. Ask for", not: ", usage"},
		"who may see what is used":  {args: []string{"pods", "-n", "ml"}, want: "usage needs the Role of the same name too"},
		"a pod that runs":           {args: []string{"explain", "-n", "ml", "runs"}, want: "is unknown without a list of all pods: you may not list nodes\n"},
		"a pod that is not created": {args: []string{"explain", "-n", "ml", "web-0"}, want: "kubectl get events -n ml --field-selector reason=FailedCreate shows the reason"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := clirun.Inspect(tenants(t), tc.args...)
			said := fmt.Sprintf("%s%s%v", stdout, stderr, err)
			if !strings.Contains(said, tc.want) || tc.not != "" && strings.Contains(said, tc.not) {
				t.Errorf("want %q, and not %q, in:\n%s", tc.want, tc.not, said)
			}
		})
	}
}

// If a quota is younger than the pods, its free amount may be negative.
func TestAQuotaThatIsExceeded(t *testing.T) {
	client := tenants(t)
	quota, err := client.CoreV1().ResourceQuotas("ml").Get(t.Context(), "gpus", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status.Used["requests.gpumem.dev/gpu-mem"] = resource.MustParse("108")
	if _, err := client.CoreV1().ResourceQuotas("ml").Update(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := clirun.Inspect(client, "fit", "-n", "ml", "--mem", "3")
	if want := "ResourceQuota ml/gpus leaves nothing (108 are used) of 12 requests.gpumem.dev/gpu-mem\n"; err == nil || !strings.Contains(stdout, want) {
		t.Errorf("error %v, and not %q in:\n%s", err, want, stdout)
	}
}

// For a tenant, doctor checks the pods in the tenant's namespace, and one line lists the missing checks.
func TestDoctorOfOneNamespace(t *testing.T) {
	client := tenants(t)
	pod := kubetest.With(kubetest.Pod(t, "ml/past", "gpu-a", 2, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) {
		key := kubetest.Names(t).Assignment()
		p.Annotations[key] = strings.Replace(p.Annotations[key], "{", `{"byNode":true,`, 1)
	})
	if err := client.Tracker().Add(pod); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := clirun.Inspect(client, "doctor", "-n", "ml")
	if code := cmdutil.ExitCode(err); code != 1 || strings.Contains(stdout, "No problem") || stderr != "" {
		t.Errorf("exit code %d, stderr %q, error %v", code, stderr, err)
	}
	if !strings.HasPrefix(stdout, "error   pods ml/past, ml/typo: 2 pods with GPU memory are scheduled without asking gpumem") || strings.Count(stdout, "forbidden") != 1 {
		t.Errorf("want the finding about the pod first, and one line about rights:\n%s", stdout)
	}
	if _, _, err := clirun.Inspect(tenants(t), "doctor", "-n", "secret"); cmdutil.ExitCode(err) != cmdutil.ExitUnknown {
		t.Errorf("of a namespace that the user may not read: %v", err)
	}
}

// Waiting pods of one Job with the same request share a row.
func TestPodsThatWaitAlikeAreOneRow(t *testing.T) {
	objects := []runtime.Object{kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16))}
	for i := range 40 {
		objects = append(objects, kubetest.With(kubetest.Pod(t, fmt.Sprintf("ml/burst-%d", i), "", 20), kubetest.OwnedBy("Job")))
	}
	objects = append(objects, kubetest.Pod(t, "ml/other", "", 20))
	client := fake.NewClientset(objects...)
	for name, args := range map[string][]string{"pods": {"pods", "--waiting", "--no-headers"}, "details": {"-d", "--no-headers"}} {
		stdout, _, err := clirun.Inspect(client, args...)
		if err != nil || strings.Count(stdout, "40 × Job/") != 1 || strings.Count(stdout, "needs 20 GiB") != 2 || !strings.Contains(stdout, "other") {
			t.Errorf("%s: error %v, and not one row for the Job and one for the other:\n%s", name, err, stdout)
		}
	}
	stdout, _, _ := clirun.Inspect(client, "pods", "--waiting", "--no-headers", "-o", "wide")
	if got := strings.Count(stdout, "needs 20 GiB"); got != 41 {
		t.Errorf("%d rows, want one for each of 41:\n%s", got, stdout)
	}
}

// One command can drain several GPUs of a node, and --dry-run prints the plan for them.
func TestDrainOfSeveralGPUs(t *testing.T) {
	client := fake.NewClientset(kubetest.Node(t, "gpu-a", kubetest.Inventory("gpu-a", 16, 16)),
		kubetest.With(kubetest.Pod(t, "ml/p", "gpu-a", 5, kubetest.UUID("gpu-a", 1)), kubetest.OwnedBy("ReplicaSet")))
	stdout, _, err := clirun.Inspect(client, "drain", "gpu-a/0", "gpu/gpu-a/1", "--dry-run")
	want := "gpu/gpu-a/0 cordoned (dry run)\ngpu/gpu-a/1 cordoned (dry run)\nevicting pod ml/p (dry run)\n"
	if err != nil || stdout != want {
		t.Errorf("error %v, want %q, got %q", err, want, stdout)
	}
	for _, a := range client.Actions() {
		if verb := a.GetVerb(); verb != "get" && verb != "list" {
			t.Errorf("a dry run did %s %s", verb, a.GetResource())
		}
	}
	if stdout, _, err := clirun.Inspect(client, "cordon", "gpu-a/1", "--dry-run"); err != nil || stdout != "gpu/gpu-a/1 cordoned (dry run)\n" {
		t.Errorf("a dry run of cordon: %v, %q", err, stdout)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("a dry run did patch %s", a.GetResource())
		}
	}
	stdout, _, err = clirun.Inspect(client, "cordon", "gpu-a", "0", "1")
	if want := "gpu/gpu-a/0 cordoned\ngpu/gpu-a/1 cordoned\n"; err != nil || stdout != want {
		t.Errorf("error %v, want %q, got %q", err, want, stdout)
	}
	stdout, _, err = clirun.Inspect(client, "cordon", "gpu-a", "0", "--reason=loud")
	if want := "gpu/gpu-a/0 was cordoned already, and its reason is not changed: uncordon the GPU first\n"; err != nil || stdout != want {
		t.Errorf("error %v, want %q, got %q", err, want, stdout)
	}
	for _, args := range [][]string{{"cordon", "gpu-a"}, {"cordon", "gpu-a/0", "gpu-b/0"}, {"cordon", "gpu-a/0", "1"}} {
		if _, _, err := clirun.Inspect(client, args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
