package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/test/stack"
)

// TestAnOrdinaryUserGainsNothing tries what somebody could who may edit one
// namespace, and knows the chart. docs/security.md tells of it.
func TestAnOrdinaryUserGainsNothing(t *testing.T) {
	e := setup(t)
	user := e.asEditor()
	t.Run("from within a pod", func(t *testing.T) {
		for name, url := range map[string]string{
			"bind":                      "http://" + e.addressOf("scheduler") + ":8010/bind",
			"pprof of extender":         "http://" + e.addressOf("scheduler") + ":8011/debug/pprof/",
			"pprof of plugin":           "http://" + e.addressOf("device-plugin") + ":8012/debug/pprof/",
			"metrics of kube-scheduler": "https://" + e.addressOf("scheduler") + ":10259/metrics",
		} {
			pod := e.pod("reaches-"+strings.ReplaceAll(strings.ToLower(name), " ", "-"), 0, func(pod *v1.Pod) {
				pod.Spec.Containers[0].Args = []string{"-get=" + url, "-exit-after=10ms"}
				pod.Spec.RestartPolicy = v1.RestartPolicyNever
			})
			if err := e.createAs(user, pod); err != nil {
				t.Fatal(err)
			}
			var said string
			e.eventually(pod.Name+" has tried", func() (bool, string) {
				text, err := e.client.CoreV1().Pods(e.namespace).GetLogs(pod.Name, &v1.PodLogOptions{}).DoRaw(e.ctx)
				said = string(text)
				return err == nil && strings.Contains(said, "get: "), fmt.Sprint(err, said)
			})
			if !strings.Contains(said, "connection refused") && !strings.Contains(said, " 404 ") && !strings.Contains(said, " 403 ") {
				t.Errorf("%s: %s", name, said)
			}
		}
	})
	t.Run("what the API server refuses", func(t *testing.T) {
		for name, do := range map[string]func() error{
			"a Secret of gpumem": func() error {
				_, err := user.CoreV1().Secrets(stack.Namespace).List(e.ctx, metav1.ListOptions{})
				return err
			},
			"the Lease": func() error {
				_, err := user.CoordinationV1().Leases(stack.Namespace).Patch(e.ctx, "gpumem-scheduler", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"me"}}`), metav1.PatchOptions{})
				return err
			},
			"a forwarded port": func() error {
				return user.CoreV1().RESTClient().Post().Namespace(stack.Namespace).Resource("pods").Name("any").SubResource("portforward").Do(e.ctx).Error()
			},
			"a binding": func() error {
				return user.CoreV1().Pods(e.namespace).Bind(e.ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "any"}, Target: v1.ObjectReference{Kind: "Node", Name: "node1"}}, metav1.CreateOptions{})
			},
			"an inventory": func() error {
				_, err := user.CoreV1().Nodes().Patch(e.ctx, "node1", types.MergePatchType, []byte(`{"metadata":{"annotations":{"gpumem.dev/inventory":"{}"}}}`), metav1.PatchOptions{})
				return err
			},
		} {
			if err := do(); !apierrors.IsForbidden(err) {
				t.Errorf("%s: %v, want it forbidden", name, err)
			}
		}
	})
	t.Run("an assignment that lies", func(t *testing.T) {
		second := e.gpu("node1", 1)
		lie := fmt.Sprintf(`{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":%q,"index":1,"units":14}]}`, second)
		bypasses := func(pod *v1.Pod) { pod.Spec.NodeName = "node1" }
		for name, more := range map[string][]func(*v1.Pod){"placed": nil, "bypasses": {bypasses}} {
			err := e.createAs(user, e.pod(name, 2, append(more, annotated("assignment", lie))...))
			if want := "annotation gpumem.dev/assignment is written by gpumem when it places the pod"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("pod %s is created: %v, want it refused with %q", name, err, want)
			}
			if err := e.createAs(user, e.pod(name, 2, append(more, onNode("node1"))...)); err != nil {
				t.Fatal(err)
			}
			e.running(name)
			e.agree(name, "main")
			_, err = user.CoreV1().Pods(e.namespace).Patch(e.ctx, name, types.MergePatchType, annotation(assignment, lie), metav1.PatchOptions{})
			if want := "annotation gpumem.dev/assignment of a pod that has a node does not change any more"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("pod %s is changed: %v, want it refused with %q", name, err, want)
			}
			e.agree(name, "main")
		}
	})
}

// addressOf returns the address of one of gpumem's pods on node1.
func (e *env) addressOf(component string) string {
	e.Helper()
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil || len(pods.Items) == 0 {
		e.Fatalf("pods of %s: %v, %v", component, pods, err)
	}
	return pods.Items[0].Status.PodIP
}

// asEditor returns a client that may do in the test's namespace what the role
// "edit" says, and nothing elsewhere.
func (e *env) asEditor() kubernetes.Interface {
	e.Helper()
	_, err := e.client.RbacV1().RoleBindings(e.namespace).Create(e.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "editor"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "editor"}},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return e.as("editor")
}

// as returns a client of a user.
func (e *env) as(user string) kubernetes.Interface {
	e.Helper()
	config, err := e.cluster.RESTConfig()
	if err != nil {
		e.Fatal(err)
	}
	config.Impersonate, config.UserAgent = rest.ImpersonationConfig{UserName: user}, attacker
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		e.Fatal(err)
	}
	return client
}
