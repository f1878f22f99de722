package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpumem/gpumem/test/stack"
)

const (
	domain = "gpumem.dev/"
	node   = "node1" // where the attacks are, on two equal GPUs
	// userAgent is that of the attackers: what is refused to them says nothing of gpumem.
	userAgent = "attacker"
)

// A field is the scene of the attacks: a tenant that attacks, and one that has pods.
type field struct {
	Config
	admin      kubernetes.Interface
	dir        string // of the attackers' kubeconfigs
	mine, hers string // namespaces of attacker and victim
	dev        account
	controller account // of the attacker's namespace too, and may patch more of its pods
	alone, own string  // UUIDs: of the victim's pod with policy exclusive, and of the attacker's
	before     map[string]int64
	fetched    map[string]string // by URL
	undo       []func(context.Context) error
}

// An account is one of somebody, with its token.
type account struct {
	kubernetes.Interface
	kubeconfig string
}

func newField(ctx context.Context, config Config) (*field, error) {
	f := &field{Config: config, admin: config.Cluster.Client()}
	var err error
	if f.dir, err = os.MkdirTemp("", "gpumem-attack-"); err != nil {
		return f, err
	}
	for _, namespace := range []*string{&f.mine, &f.hers} {
		if *namespace, err = f.Cluster.MakeNamespace(ctx, "attack-"); err != nil {
			return f, err
		}
	}
	if f.dev, err = f.tenant(ctx, "dev"); err != nil {
		return f, err
	}
	if f.controller, err = f.tenant(ctx, "controller"); err != nil {
		return f, err
	}
	if err := f.mayPatchMore(ctx); err != nil {
		return f, err
	}
	return f, f.scene(ctx)
}

// mayPatchMore gives the controller rights to subresources of pods of its namespace, which the
// role edit has not.
func (f *field) mayPatchMore(ctx context.Context) error {
	_, err := f.admin.RbacV1().Roles(f.mine).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/status", "pods/ephemeralcontainers", "pods/resize"}, Verbs: []string{"patch", "update"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return f.bindRole(ctx, "more", "Role", "more", "controller")
}

func (f *field) bindRole(ctx context.Context, name, kind, role, who string) error {
	_, err := f.admin.RbacV1().RoleBindings(f.mine).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: f.mine, Name: who}},
	}, metav1.CreateOptions{})
	return err
}

// tenant makes an account of the attacker's namespace with the role edit there.
func (f *field) tenant(ctx context.Context, name string) (account, error) {
	accounts := f.admin.CoreV1().ServiceAccounts(f.mine)
	if _, err := accounts.Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return account{}, err
	}
	if err := f.bindRole(ctx, name, "ClusterRole", "edit", name); err != nil {
		return account{}, err
	}
	return f.accountOf(ctx, f.mine, name, nil)
}

// accountOf returns an account with a token that the API server gives for it.
func (f *field) accountOf(ctx context.Context, namespace, name string, to *authenticationv1.BoundObjectReference) (out account, err error) {
	token, err := f.admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: to},
	}, metav1.CreateOptions{})
	if err != nil {
		return account{}, err
	}
	admin, err := f.Cluster.RESTConfig()
	if err != nil {
		return account{}, err
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken, config.UserAgent, config.QPS, config.WarningHandler = token.Status.Token, userAgent, -1, rest.NoWarnings{}
	if out.Interface, err = kubernetes.NewForConfig(config); err != nil {
		return account{}, err
	}
	out.kubeconfig = filepath.Join(f.dir, name+".kubeconfig")
	file := clientcmdapi.NewConfig()
	file.Clusters["it"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}
	file.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	file.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it", Namespace: f.mine}
	file.CurrentContext = "it"
	return out, clientcmd.WriteToFile(*file, out.kubeconfig)
}

// kubectl runs kubectl as an account.
func (f *field) kubectl(ctx context.Context, as account, args ...string) error {
	_, err := f.Stack.Kubectl(ctx, f.Cluster, append([]string{"--kubeconfig", as.kubeconfig}, args...)...)
	return err
}

// scene makes the pods of both. The victim's has a GPU of node1 alone, so the attacker's are
// on the other.
func (f *field) scene(ctx context.Context) error {
	alone := f.pod("alone", 2, annotated("policy", "exclusive"), onNode(node))
	alone.Namespace = f.hers
	for _, p := range []*v1.Pod{alone, f.pod("mine", 2, onNode(node))} {
		if err := f.start(ctx, f.admin, p); err != nil {
			return err
		}
	}
	for _, p := range []*v1.Pod{f.pod("waits", 1, annotated("gpu-uuid", "GPU-none")), f.pod("gated", 1, gated)} {
		if err := create(ctx, f.admin, p); err != nil {
			return err
		}
	}
	on, err := f.podsOf(ctx, node)
	if err != nil {
		return err
	}
	for uuid, pods := range on {
		switch {
		case slices.Contains(pods, f.hers+"/alone"):
			f.alone = uuid
		case slices.Contains(pods, f.mine+"/mine"):
			f.own = uuid
		}
	}
	if f.alone == "" || f.own == "" {
		return fmt.Errorf("the pods are not on two GPUs of %s: %q and %q", node, f.alone, f.own)
	}
	f.before, err = f.units(ctx)
	return err
}

// close takes away what there is of the scene.
func (f *field) close(ctx context.Context) error {
	var errs []error
	for _, undo := range slices.Backward(f.undo) {
		errs = append(errs, undo(ctx))
	}
	for _, namespace := range []string{f.mine, f.hers} {
		if namespace == "" {
			continue
		}
		// A controller makes no more of them when the namespace ends.
		errs = append(errs, f.admin.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}))
		errs = append(errs, f.until(ctx, "namespace "+namespace+" has no pods", func(ctx context.Context) (bool, string) {
			pods := f.admin.CoreV1().Pods(namespace)
			if err := pods.DeleteCollection(ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{}); err != nil {
				return false, err.Error()
			}
			list, err := pods.List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 0, fmt.Sprint(err)
		}))
	}
	return errors.Join(append(errs, os.RemoveAll(f.dir))...)
}

// until waits for a condition, and says what it last said where it does not come.
func (f *field) until(ctx context.Context, what string, condition func(context.Context) (ok bool, now string)) error {
	return stack.Eventually(ctx, 90*time.Second, what, condition)
}

// pod describes a pod of the attacker's.
func (f *field) pod(name string, units int64, more ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.mine, Name: name, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			SchedulerName:                 "gpumem-scheduler",
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers:                    []v1.Container{stack.SampleContainer("main", units)},
		},
	}
	for _, change := range more {
		change(pod)
	}
	return pod
}

func annotated(key, value string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Annotations[domain+key] = value }
}

func onNode(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: name} }
}

// placed is a pod that comes by no scheduler.
func placed(on string) func(*v1.Pod) { return func(pod *v1.Pod) { pod.Spec.NodeName = on } }

func gated(pod *v1.Pod) {
	pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/gate"}}
}

func doing(args ...string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Args = args
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
	}
}

func create(ctx context.Context, as kubernetes.Interface, pod *v1.Pod) error {
	_, err := as.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func dryRun(ctx context.Context, as kubernetes.Interface, pod *v1.Pod) error {
	_, err := as.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// podUntil waits for a condition of a pod.
func (f *field) podUntil(ctx context.Context, what, namespace, name string, condition func(*v1.Pod) (ok bool, now string)) error {
	return f.until(ctx, what, func(ctx context.Context) (bool, string) {
		pod, err := f.admin.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return condition(pod)
	})
}

// start creates a pod and waits until it runs.
func (f *field) start(ctx context.Context, as kubernetes.Interface, pod *v1.Pod) error {
	if err := create(ctx, as, pod); err != nil {
		return err
	}
	return f.runs(ctx, pod.Namespace, pod.Name)
}

// runs waits until a pod runs; one that has failed never will.
func (f *field) runs(ctx context.Context, namespace, name string) error {
	var failed error
	err := f.podUntil(ctx, "pod "+name+" runs", namespace, name, func(pod *v1.Pod) (bool, string) {
		if pod.Status.Phase == v1.PodFailed {
			failed = fmt.Errorf("pod %s failed: %s: %s", name, pod.Status.Reason, pod.Status.Message)
			return true, ""
		}
		return pod.Status.Phase == v1.PodRunning, fmt.Sprint(pod.Status.Phase, pod.Status.Conditions)
	})
	return errors.Join(err, failed)
}

// remove deletes a pod at once.
func (f *field) remove(ctx context.Context, namespace, name string) error {
	return f.admin.CoreV1().Pods(namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0))
}

// end deletes a pod of the attacker's and waits until it is gone.
func (f *field) end(ctx context.Context, name string) error {
	if err := f.remove(ctx, f.mine, name); err != nil {
		return err
	}
	return f.until(ctx, "the accounts have nothing of pod "+name, func(ctx context.Context) (bool, string) {
		on, err := f.podsOf(ctx, node)
		if err != nil {
			return false, err.Error()
		}
		for _, pods := range on {
			if slices.Contains(pods, f.mine+"/"+name) {
				return false, fmt.Sprint(pods)
			}
		}
		return true, ""
	})
}

// log waits until a pod has printed some words, and returns all that it has printed.
func (f *field) log(ctx context.Context, name, container, words string) (text string, err error) {
	err = f.until(ctx, "pod "+name+" prints "+words, func(ctx context.Context) (bool, string) {
		out, err := f.admin.CoreV1().Pods(f.mine).GetLogs(name, &v1.PodLogOptions{Container: container}).DoRaw(ctx)
		text = string(out)
		return err == nil && strings.Contains(text, words), fmt.Sprint(err, text)
	})
	return text, err
}

// A fleet is what is read here of "kubectl inspect gpumem -o json".
type fleet struct {
	Nodes []struct {
		Name string
		GPUs []struct {
			UUID      string
			Requested struct{ Units int64 }
			Pods      []struct{ Namespace, Name string }
		}
	}
}

// podOf returns the pod of one of gpumem's components: on a node, if one is named.
func (f *field) podOf(ctx context.Context, component, on string) (*v1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + stack.Release + ",app.kubernetes.io/component=" + component}
	if on != "" {
		options.FieldSelector = "spec.nodeName=" + on
	}
	list, err := f.admin.CoreV1().Pods(stack.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && pod.Status.PodIP != "" {
			return &pod, nil
		}
	}
	return nil, fmt.Errorf("there is no pod of %s", component)
}

// inspect returns what the accounts have.
func (f *field) inspect(ctx context.Context) (out fleet, err error) {
	text, err := f.Stack.Inspect(ctx, f.Cluster, "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &out)
	}
	return out, err
}

// podsOf returns the pods on each GPU of a node.
func (f *field) podsOf(ctx context.Context, name string) (map[string][]string, error) {
	all, err := f.inspect(ctx)
	out := make(map[string][]string)
	for _, n := range all.Nodes {
		for _, g := range n.GPUs {
			if n.Name != name {
				continue
			}
			out[g.UUID] = nil
			for _, p := range g.Pods {
				out[g.UUID] = append(out[g.UUID], p.Namespace+"/"+p.Name)
			}
		}
	}
	return out, err
}

// units returns what each GPU of the fleet has given away.
func (f *field) units(ctx context.Context) (map[string]int64, error) {
	all, err := f.inspect(ctx)
	out := make(map[string]int64)
	for _, n := range all.Nodes {
		for _, g := range n.GPUs {
			out[g.UUID] = g.Requested.Units
		}
	}
	return out, err
}

// accounts is the last attack: nothing of the others is left in the accounts but the scene.
func accounts(ctx context.Context, f *field) (string, error) {
	var now map[string]int64
	err := f.until(ctx, "the accounts are as before", func(ctx context.Context) (bool, string) {
		var err error
		now, err = f.units(ctx)
		return err == nil && maps.Equal(now, f.before), fmt.Sprint(now, ", before ", f.before, err)
	})
	return fmt.Sprintf("units of each GPU as before: %v", now), err
}

// patch changes one annotation of a pod, which is given with its namespace.
func patch(ctx context.Context, as kubernetes.Interface, pod, key, value string, subresources ...string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err == nil {
		namespace, name, _ := strings.Cut(pod, "/")
		_, err = as.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	}
	return err
}
