package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/test/stack"
)

// tenant is a user with the role edit in the namespace of the run, who changes what gpumem has
// written of the pods there, and what it goes by. The API server is to refuse all of it; what it
// takes is harm, whatever becomes of it.
type tenant struct {
	client  kubernetes.Interface // with the tenant's rights
	devices devices
	random  *rand.Rand

	mu      sync.Mutex
	refused int      // forgeries
	harmed  []string // what was done
}

// newTenant makes the tenant's account.
func newTenant(ctx context.Context, b *bench, seed uint64) (*tenant, error) {
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}
	if _, err := b.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	_, err := b.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	config, err := b.cluster.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account.Name}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &tenant{client: client, devices: b.devices, random: rand.New(rand.NewPCG(seed, 1<<33))}, nil
}

// run forges until ctx ends.
func (t *tenant) run(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		what, err := t.forge(call)
		cancel()
		t.mu.Lock()
		switch {
		case what == "" || ctx.Err() != nil:
		case err == nil:
			t.harmed = append(t.harmed, what)
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
			t.refused++
		}
		t.mu.Unlock()
	}
}

// forge tries one thing, and says what; it says nothing where there is nothing to try.
func (t *tenant) forge(ctx context.Context) (what string, err error) {
	d := t.devices[t.random.IntN(len(t.devices))]
	forged := fmt.Sprintf(`{"v":1,"unitMiB":1024,"gpus":[{"uuid":%q,"index":%d,"units":1}]}`, d.uuid, d.index)
	if t.random.IntN(5) == 0 {
		pod := basicPod(fmt.Sprintf("forged-%d", t.random.Uint32()))
		pod.Annotations[assignmentKey] = forged
		pod.Spec.NodeName = d.node
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 1)}
		_, err := t.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return "pod " + pod.Name + " was made with an assignment", err
	}
	list, err := t.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil || len(list.Items) == 0 {
		return "", err
	}
	pod := list.Items[t.random.IntN(len(list.Items))]
	written := map[string]any{assignmentKey: forged, "gpumem.dev/gpu-index": "7"}
	wishes := map[string]any{countKey: "8", policyKey: "exclusive", "gpumem.dev/exclusive-group": "all", uuidKey: "GPU-none", "gpumem.dev/room-made": "now"}
	key, value := pick(t.random, written)
	if pod.Spec.NodeName != "" {
		switch t.random.IntN(3) {
		case 0:
			key, value = pick(t.random, wishes)
		case 1:
			key, value = assignmentKey, nil // taken away
		}
	}
	if was, has := pod.Annotations[key]; has && value == was || !has && value == nil {
		return "", nil // changes nothing
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{key: value}}})
	if err != nil {
		return "", err
	}
	_, err = t.client.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return fmt.Sprintf("annotation %s of pod %s (%s) was changed to %v", key, pod.Name, pod.UID, value), err
}

// pick returns one of some annotations.
func pick(r *rand.Rand, from map[string]any) (key string, value any) {
	keys := slices.Sorted(maps.Keys(from))
	key = keys[r.IntN(len(keys))]
	return key, from[key]
}

// result returns how many forgeries were refused, and what the others did.
func (t *tenant) result() (refused int, harmed []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused, t.harmed
}
