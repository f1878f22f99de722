package nodeapi

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// failing is a reaction that fails each call.
func failing(clienttesting.Action) (bool, runtime.Object, error) {
	return true, nil, errors.New("no answer")
}

// ReadClaims omits claims that do not exist yet, and returns an error for any other failure.
func TestReadClaims(t *testing.T) {
	user := pod("a", "u1", 0)
	user.Spec.ResourceClaims = []v1.PodResourceClaim{
		{Name: "there", ResourceClaimName: new("claim")},
		{Name: "gone", ResourceClaimName: new("none")},
		{Name: "not-made-yet", ResourceClaimTemplateName: new("template")},
		{Name: "made", ResourceClaimTemplateName: new("template")},
	}
	user.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: new("of-template")}}
	claim := func(name string) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	client := fake.NewClientset(user, pod("b", "u2", 3), claim("claim"), claim("of-template"), claim("of-nobody"))
	claims, err := ReadClaims(t.Context(), client, "n1")
	var got []string
	for _, c := range claims {
		got = append(got, c.Name)
	}
	if err != nil || !slices.Equal(got, []string{"claim", "of-template"}) {
		t.Errorf("claims %v, %v", got, err)
	}
	for verb, resource := range map[string]string{"get": "resourceclaims", "list": "pods"} {
		client := fake.NewClientset(user)
		client.PrependReactor(verb, resource, failing)
		if claims, err := ReadClaims(t.Context(), client, "n1"); err == nil || len(claims) > 0 {
			t.Errorf("%s %s fails: %d claims, %v", verb, resource, len(claims), err)
		}
	}
}

// ClientsStopped reads only the label of its own node.
func TestClientsStopped(t *testing.T) {
	node := func(name, clients string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.GPUClients: clients}}}
	}
	for name, tc := range map[string]struct {
		nodes []runtime.Object
		want  bool
	}{
		"its clients run":           {[]runtime.Object{node("n1", "true")}, false},
		"its clients are stopped":   {[]runtime.Object{node("n0", "true"), node("n1", "paused-for-driver-upgrade")}, true},
		"those of another node are": {[]runtime.Object{node("n1", "true"), node("n2", "paused-for-driver-upgrade")}, false},
		"no node":                   {nil, false},
	} {
		got, err := NewPublisher(fake.NewClientset(tc.nodes...), names(t), "n1", zap.NewNop()).ClientsStopped(t.Context())
		if got != tc.want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	client := fake.NewClientset(node("n1", "true"))
	client.PrependReactor("list", "nodes", failing)
	if _, err := NewPublisher(client, names(t), "n1", zap.NewNop()).ClientsStopped(t.Context()); err == nil {
		t.Error("a failed call is an answer")
	}
}

// TestObjectsThatAreNoPods covers the other objects that an informer can deliver.
func TestObjectsThatAreNoPods(t *testing.T) {
	p := NewPods(fake.NewClientset(), names(t), "n1", zap.NewNop())
	p.watched("no pod")
	p.store("no pod")
	p.remove("no pod")
	p.watched(pod("a", "u1", 3))
	p.remove(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: "no pod"})
	if pods, _, _ := p.Pods(); uids(pods) != "u1" {
		t.Errorf("pods %q", uids(pods))
	}
	p.remove(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: pod("a", "u1", 3)})
	if pods, _, _ := p.Pods(); len(pods) != 0 {
		t.Errorf("pods %q after the watch has missed the end of the last one", uids(pods))
	}
	n := NewPublisher(fake.NewClientset(), names(t), "n1", zap.NewNop())
	if got, err := n.trim("no node"); got != "no node" || err != nil {
		t.Errorf("trimmed to %v, %v", got, err)
	}
	store := cache.NewStore(func(any) (string, error) { return "n1", nil })
	if err := store.Add(&v1.Pod{}); err != nil {
		t.Fatal(err)
	}
	if err := n.publish(t.Context(), store, inventory(gpu0), true); err == nil || !strings.Contains(err.Error(), "*v1.Pod") {
		t.Errorf("a pod under the node's name: %v", err)
	}
}

func TestResourceVersions(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"2", "1", true}, {"1", "2", false}, {"10", "9", true}, {"1", "1", false}} {
		if got := isNewer(tc.a, tc.b, !tc.want); got != tc.want {
			t.Errorf("%s is newer than %s: %t", tc.a, tc.b, got)
		}
	}
	for _, unknown := range []bool{true, false} {
		if got := isNewer("", "1", unknown); got != unknown {
			t.Errorf("versions that cannot be compared: %t, want %t", got, unknown)
		}
	}
}

// A patch that cannot be encoded as JSON is an error, and sends nothing.
func TestAPatchThatIsNoJSON(t *testing.T) {
	client := fake.NewClientset(pod("a", "u1", 3), healthOf(inventory(gpu0)))
	none := object{"none": func() {}}
	p, n := NewPods(client, names(t), "n1", zap.NewNop()), NewPublisher(client, names(t), "n1", zap.NewNop())
	if _, err := p.patch(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, none); err == nil {
		t.Error("a pod was patched")
	}
	if err := n.patch(t.Context(), types.MergePatchType, none); err == nil || len(client.Actions()) > 0 {
		t.Errorf("%v, calls %v", err, client.Actions())
	}
}

// A plugin that ends before the accounts are known writes nothing. Without the accounts, the inventory could show
// less for a pod than the kubelet has allocated to it.
func TestANodeThatEndsBeforeItKnowsItsPods(t *testing.T) {
	client := fake.NewClientset(healthOf(inventory(gpu0)))
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		t.Errorf("written: %v", action)
		return false, nil, nil
	})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	n.stop()
	done := make(chan error, 1)
	go func() {
		done <- n.Run(t.Context(), func() (gpu.Inventory, <-chan struct{}) { return inventory(gpu0), nil },
			func() ([]gpu.PodAllocation, bool, <-chan struct{}) { return nil, false, nil })
	}()
	select {
	case err := <-done:
		if err != nil || n.Missing() != errAccount.Error() {
			t.Errorf("%v, missing %q", err, n.Missing())
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}

// If the context ends first, Missing returns the reason why the inventory was not withdrawn.
func TestWithdrawEndsWithItsContext(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return true, nil, errors.New("no answer")
	})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	if err := n.withdraw(ctx, inventory(gpu0)); err != nil || !strings.Contains(n.Missing(), "no answer") {
		t.Errorf("%v, missing %q", err, n.Missing())
	}
	select {
	case <-n.withdrawn:
		t.Error("it counts as withdrawn")
	default:
	}
}

// Run doubles the pause after each failed write, and begins with the minimum again after a success.
func TestPausesBetweenFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(healthOf(inventory(gpu0)))
		var mu sync.Mutex
		var fails bool
		var at []time.Time
		set := func(to bool) {
			mu.Lock()
			defer mu.Unlock()
			fails = to
		}
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return fails, nil, errors.New("no answer")
		})
		wantPauses := func(want ...time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var got []time.Duration
			for i, when := range at {
				if i > 0 && when.After(at[i-1]) {
					got = append(got, when.Sub(at[i-1]))
				}
			}
			if len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
				t.Errorf("pauses %v, want %v at the end", got, want)
			}
		}
		n := NewPublisher(client, names(t), "n1", zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done, offers, units := make(chan error), make(chan struct{}), gpu.Units(14)
		go func() {
			done <- n.Run(ctx, func() (gpu.Inventory, <-chan struct{}) {
				mu.Lock()
				defer mu.Unlock()
				one := gpu0
				one.Allocatable = units
				return inventory(one), offers
			}, nothing)
		}()
		set(true)
		time.Sleep(5 * time.Minute)
		wantPauses(2*time.Second, 4*time.Second, 8*time.Second, 16*time.Second, 32*time.Second, maxRetry, maxRetry, maxRetry)
		set(false)
		time.Sleep(2 * maxRetry)
		set(true)
		mu.Lock()
		units = 13
		mu.Unlock()
		offers <- struct{}{}
		time.Sleep(8 * minRetry)
		wantPauses(minRetry, 2*minRetry, 4*minRetry)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestCallsAtOnce makes concurrent calls whose answers contain pods. The race detector checks the counter of
// pending calls.
func TestCallsAtOnce(t *testing.T) {
	p := NewPods(fake.NewClientset(pod("a", "u1", 3)), names(t), "n1", zap.NewNop())
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if err := p.Refresh(t.Context()); err != nil {
				t.Error(err)
			}
			p.Missing()
			p.ClaimUsers()
			p.Disruptions()
		})
	}
	calls.Wait()
	if p.pendingReads != 0 || p.removed != nil {
		t.Errorf("%d calls run, gone %v", p.pendingReads, p.removed)
	}
}

// The view signals only changes that readers need.
func TestWhatSignalsAChange(t *testing.T) {
	p := NewPods(fake.NewClientset(), names(t), "n1", zap.NewNop())
	version := 0
	put := func(change func(*v1.Pod)) bool {
		version++
		one := pod("a", "u1", 3)
		one.ResourceVersion = strconv.Itoa(version)
		if change != nil {
			change(one)
		}
		_, _, changed := p.Pods()
		p.store(one)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	disrupt := func(one *v1.Pod) {
		one.Status.Conditions = append(one.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler})
	}
	for i, tc := range []struct {
		change func(*v1.Pod)
		want   bool
	}{
		{nil, true},
		{nil, false},
		{disrupt, true},
		{disrupt, false},
		{nil, true},
		{func(one *v1.Pod) { one.Annotations = map[string]string{"gpumem.dev/gpu-index": "1"} }, true},
	} {
		if got := put(tc.change); got != tc.want {
			t.Errorf("version %d: signalled %t", i+1, got)
		}
	}
}
