package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

func TestAdmission(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*Config)
		pods    []allocation.Pod
		admit   []string // names, in the kubelet's order; default: all
		want    []string
		wantErr string
		fixed   []string
		events  []string
	}{
		{
			name: "a pod gets the GPU it was assigned",
			pods: []allocation.Pod{pod("a", 1, uuidB, app(3))},
			want: []string{"a main=1"},
		},
		{
			name: "containers, a sidecar and an init container share one GPU",
			pods: []allocation.Pod{pod("a", 1, uuidB,
				container("prepare", placement.Init, 3), container("proxy", placement.Sidecar, 1),
				container("one", placement.App, 1), container("two", placement.App, 2))},
			want: []string{"a prepare=1 proxy=1 one=1 two=1"},
		},
		{
			name:  "admission in another order than binding",
			pods:  []allocation.Pod{pod("a", 1, uuidA, app(3)), pod("b", 2, uuidB, app(3))},
			admit: []string{"b", "a"}, // the kubelet lists b first, so the call is for b
			want:  []string{"b main=1", "a main=0"},
		},
		{
			name:   "a pod that no scheduler placed is placed beside the others, and written down",
			pods:   []allocation.Pod{pod("a", 1, uuidA, app(6)), pod("direct", 2, "", app(3))},
			want:   []string{"a main=0", "direct main=1"},
			fixed:  []string{"ns/direct [" + string(uuidB) + "] by the node"},
			events: []string{"ns/direct GPUMemoryPlaced"},
		},
		{
			name:    "or is refused",
			change:  func(c *Config) { c.PlaceUnassigned = false },
			pods:    []allocation.Pod{pod("direct", 2, "", app(3))},
			wantErr: "pod ns/direct was not placed by gpumem's scheduler",
			events:  []string{"ns/direct GPUMemoryRefused"},
		},
		{
			name:    "a pod that is too large says so",
			pods:    []allocation.Pod{pod("direct", 2, "", app(9))},
			wantErr: "pod ns/direct needs 9 GiB on one GPU; the largest that qualifies here has 8 GiB",
			events:  []string{"ns/direct GPUMemoryRefused"},
		},
		{
			name: "two GPUs for one pod",
			pods: []allocation.Pod{func() allocation.Pod {
				p := pod("a", 1, "", app(8))
				p.Request.Count = 2
				p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA, Units: 4}, {Device: uuidB, Units: 4}}}
				p.Index = "0,1"
				return p
			}()},
			want: []string{"a main=0,1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.change, nil, tc.pods...)
			order := tc.admit
			if order == nil {
				for _, p := range tc.pods {
					order = append(order, p.Pod.Name)
				}
			}
			var got []string
			for _, name := range order {
				i := slices.IndexFunc(tc.pods, func(p allocation.Pod) bool { return p.Pod.Name == name })
				gpus, err := n.Admit(t, tc.pods[i])
				switch {
				case tc.wantErr != "":
					wantStatus(t, err, codes.FailedPrecondition, tc.wantErr)
				case err != nil:
					t.Fatal(err)
				default:
					got = append(got, name+" "+strings.Join(gpus, " "))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.fixed, n.Pods.Corrected()); diff != "" {
				t.Errorf("corrections (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.events, n.Notes.All()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestASwappedPodStaysOnOneGPU(t *testing.T) {
	two := []placement.Container{container("one", placement.App, 2), container("two", placement.App, 3)}
	a, b := pod("a", 1, uuidA, two...), pod("b", 2, uuidB, two...)
	n := newNode(t, nil, []string{"ns/a", "ns/b"}, a, b)
	ids, err := n.Preferred(t.Context(), n.Free(), nil, 2) // the kubelet's call is for b
	if err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Give("b", "one", ids)
	next, err := n.Preferred(t.Context(), n.Free(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if ids[0][:8] != "aaaaaaaa" || next[0][:8] != "aaaaaaaa" {
		t.Errorf("containers of b got %v and %v, want one GPU", ids, next)
	}
}

func TestASamePodAskedForAgainGetsItsGPU(t *testing.T) {
	p := pod("a", 1, uuidB, app(3))
	p.Admitted = true // the kubelet has lost its checkpoint, and admits the pod again
	n := newNode(t, nil, nil, p)
	gpus, err := n.Admit(t, p)
	if err != nil || !slices.Equal(gpus, []string{"main=1"}) {
		t.Errorf("got %v, %v; want GPU 1", gpus, err)
	}
}

func TestAPodThatIsNotKnownYetIsWaitedFor(t *testing.T) {
	n := newNode(t, func(c *Config) { c.PodWait = plugintest.Patience }, []string{"ns/late"},
		pod("other", 1, uuidA, app(3))) // waits for the same amount, but the kubelet does not list it
	done := make(chan error)
	var ids []string
	go func() {
		var err error
		ids, err = n.Preferred(t.Context(), n.Free(), nil, 3)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("answered before the pod was known: %v, %v", ids, err)
	case <-time.After(20 * time.Millisecond): // a correct plugin does not answer before the pod is known
	}
	n.Pods.Add(pod("late", 2, uuidB, app(3)))
	if err := <-done; err != nil || ids[0] != "bbbbbbbb-0" {
		t.Errorf("got %v, %v; want GPU 1", ids, err)
	}
}

// The kubelet does not list the allocation of an admitted pod's init container, and calls for the same amount
// for an unknown pod.
func TestAPodThatHasBegunIsNotTakenForOneThatIsNotKnownYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		warm := pod("warm", 1, uuidA, container("warm", placement.Init, 3))
		n := newNode(t, nil, nil, warm)
		if _, err := n.Admit(t, warm); err != nil {
			t.Fatal(err)
		}
		n.Pods.Settle("warm")
		n.State.Registered()
		n.Kubelet.Lists("ns/late")
		n.Pods.Behind = []allocation.Pod{pod("late", 2, uuidB, app(3))}
		ids, err := n.Preferred(t.Context(), n.Free("aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1", ids, err)
		}
	})
}

// The watch is broken, and another pod waits for the same amount.
func TestAPodThatTheWatchDoesNotTellOfIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, []string{"ns/late"}, pod("other", 1, uuidA, app(3)))
		n.Pods.Behind = []allocation.Pod{pod("late", 2, uuidB, app(3))}
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Fatalf("got %v, %v; want GPU 1", ids, err)
		}
		if _, err := n.Allocate(t.Context(), ids...); err != nil {
			t.Error(err)
		}
		if n.Pods.Refreshes != 1 {
			t.Errorf("the API server was asked %d times, want once", n.Pods.Refreshes)
		}
	})
}

// The plugin retries until the API server answers. Otherwise it would place the pod on a single GPU, which the
// Reconciler could not correct.
func TestThePodIsAskedForUntilTheAPIServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(c *Config) { c.PodWait = 10 * time.Second }, []string{"ns/late"})
		n.Pods.Away = 12
		late := pod("late", 1, "", app(4))
		late.Request.Count = 2
		late.Assignment = placement.Assignment{Shares: []placement.Share{{Device: uuidA}, {Device: uuidB}}}.WithShares(late.Request)
		n.Pods.Behind = []allocation.Pod{late}
		before := time.Now()
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 4)
		if err != nil || len(ids) != 4 || ids[0] != "aaaaaaaa-0" || ids[3] != "bbbbbbbb-1" {
			t.Errorf("got %v, %v; want two slots on each GPU", ids, err)
		}
		if waited := time.Since(before); n.Pods.Refreshes != 13 || waited > 8*time.Second {
			t.Errorf("the API server was asked %d times in %s", n.Pods.Refreshes, waited)
		}
	})
}

// If the API server answers without the pod, the plugin only waits briefly for the watch.
func TestAPodThatIsGoneIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(c *Config) { c.PodWait = 10 * time.Second }, []string{"ns/late"})
		before := time.Now()
		if _, err := n.Preferred(t.Context(), n.Free(), nil, 3); err != nil {
			t.Error(err)
		}
		if waited := time.Since(before); n.Pods.Refreshes != 1 || waited > 3*time.Second {
			t.Errorf("the API server was asked %d times in %s", n.Pods.Refreshes, waited)
		}
	})
}

// After a wait, the plugin chooses GPUs from the current state, not from the state before the wait.
func TestAGPUThatIsCordonedMeanwhileGetsNoUnknownPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		n := newNode(t, func(c *Config) {
			c.Cordoned = func() []gpu.UUID {
				if time.Since(begun) == 0 {
					return nil
				}
				return []gpu.UUID{uuidA}
			}
		}, []string{"ns/late"})
		n.Pods.Away = 1000
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1", ids, err)
		}
	})
}

func TestAPodThatNeverBecomesKnown(t *testing.T) {
	n := newNode(t, nil, []string{"ns/late"}, pod("other", 1, uuidA, app(6)))
	ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
	if err != nil || ids[0] != "bbbbbbbb-0" {
		t.Errorf("place: got %v, %v; want GPU 1, beside what is planned", ids, err)
	}
	if _, err := n.Allocate(t.Context(), ids...); err != nil {
		t.Errorf("place: %v", err)
	}
	n = newNode(t, func(c *Config) { c.PlaceUnassigned = false }, []string{"ns/late"})
	_, err = n.Preferred(t.Context(), n.Free(), nil, 3)
	wantStatus(t, err, codes.NotFound, "the API server has not reported it yet")
	_, err = n.Allocate(t.Context(), "bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2")
	wantStatus(t, err, codes.NotFound, "the API server has not reported it yet")
}

func TestAKubeletThatDoesNotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, nil, pod("a", 1, uuidB, app(3)))
		n.Kubelet.Deaf = true
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 3)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1 by the annotation", ids, err)
		}
		if err := n.Start(t.Context(), ids...); err != nil {
			t.Errorf("start: %v", err)
		}
	})
}

// While the kubelet does not answer, its call may be for any pod with that amount.
func TestContainersStayTogetherWhileTheKubeletDoesNotTell(t *testing.T) {
	for _, tc := range []struct {
		name       string
		containers []placement.Container
	}{
		{"two containers", []placement.Container{container("one", placement.App, 4), container("two", placement.App, 2)}},
		{"after a sidecar", []placement.Container{container("proxy", placement.Sidecar, 4), container("one", placement.App, 2)}},
		{"after an init container of the same size", []placement.Container{
			container("prepare", placement.Init, 4), container("one", placement.App, 4), container("two", placement.App, 2),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, nil, []string{"ns/p"},
					pod("older", 1, uuidA, app(2)), pod("p", 2, uuidB, tc.containers...))
				for i, c := range tc.containers {
					if i == 1 {
						n.Kubelet.Deaf = true
					}
					ids, err := n.Preferred(t.Context(), n.Free(), nil, c.Units)
					if tc.containers[0].Kind == placement.Init && i == 1 {
						ids, err = []string{"bbbbbbbb-0", "bbbbbbbb-1", "bbbbbbbb-2", "bbbbbbbb-3"}, nil // the slots of the init container
					}
					if err != nil || !strings.HasPrefix(ids[0], "bbbbbbbb-") {
						t.Fatalf("%s: got %v, %v; want IDs of GPU 1", c.Name, ids, err)
					}
					if _, err := n.Allocate(t.Context(), ids...); err != nil {
						t.Fatalf("%s: %v", c.Name, err)
					}
				}
			})
		})
	}
}

func TestAKubeletThatHasNeverToldAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, nil,
			pod("older", 1, uuidA, app(2)), pod("p", 2, uuidB, container("one", placement.App, 4), container("two", placement.App, 2)))
		n.Kubelet.Deaf = true
		ids, err := n.Preferred(t.Context(), n.Free(), nil, 4)
		if err != nil || ids[0] != "bbbbbbbb-0" {
			t.Errorf("got %v, %v; want GPU 1: no other pod asks for as much", ids, err)
		}
		_, err = n.Preferred(t.Context(), n.Free(), nil, 2)
		wantStatus(t, err, codes.FailedPrecondition, "the kubelet's call names no pod, and both pod ns/p and pod ns/older match")
	})
}

// A restarted kubelet may have lost allocations since its last answer. Its call is then for a container that
// already has a grant.
func TestAKubeletThatStartsAgainMayHaveLostWhatItWasGiven(t *testing.T) {
	for _, r := range []gpu.Resource{gpu.Memory, gpu.Cores} {
		t.Run(r.String(), func(t *testing.T) { testKubeletThatStartsAgain(t, r) })
	}
}

// testKubeletThatStartsAgain registers the plugin again for one resource. A registration for cores alone does
// not mean that the kubelet has lost its records.
func testKubeletThatStartsAgain(t *testing.T, r gpu.Resource) {
	p := pod("p", 1, uuidB, container("one", placement.App, 3), container("two", placement.App, 2))
	n := newNode(t, func(c *Config) { c.KubeletWait = 20 * time.Millisecond }, []string{"ns/p"}, p)
	if err := n.Reconciler.Pass(t.Context()); err != nil { // the kubelet's first answer has no allocations
		t.Fatal(err)
	}
	n.Kubelet.Deaf = true
	first, err := n.Preferred(t.Context(), n.Free(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Allocate(t.Context(), first...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), plugintest.Patience)
	defer cancel()
	server := map[gpu.Resource]pluginapi.DevicePluginClient{gpu.Memory: n.Client, gpu.Cores: plugintest.Connect(t, n.Server.Cores())}
	stream, err := server[r].ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	received(t, stream)
	again, err := n.Preferred(t.Context(), n.Free(), nil, 3)
	if diff := cmp.Diff(first, again); err != nil || (diff == "") != (r == gpu.Memory) {
		t.Errorf("%v (-first +again):\n%s", err, diff)
	}
}

// TestAllocateResolvesSecondNames covers second names that the pod sets for the container. The table and the
// kubelet get the same answer.
func TestAllocateResolvesSecondNames(t *testing.T) {
	p := pod("a", 1, uuidA, container("one", placement.App, 1), container("two", placement.App, 2))
	p.Seconds = map[string]map[string]string{"two": {"XLA_CLIENT_MEM_FRACTION": "0.95", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}}
	n := newNode(t, func(c *Config) { c.Containers.Frameworks = []render.Framework{"jax", "pytorch"} }, nil, p)
	for _, tc := range []struct {
		ids        []string
		jax, torch string
	}{
		{[]string{"aaaaaaaa-0"}, "0.0965", "per_process_memory_fraction:0.0965"},
		{[]string{"aaaaaaaa-1", "aaaaaaaa-2"}, "", "backend:native,per_process_memory_fraction:0.2083"},
	} {
		got, err := n.Allocate(t.Context(), tc.ids...)
		if err != nil {
			t.Fatal(err)
		}
		env := got.GetEnvs()
		if _, set := env["XLA_PYTHON_CLIENT_MEM_FRACTION"]; set != (tc.jax != "") || env["XLA_PYTHON_CLIENT_MEM_FRACTION"] != tc.jax || env["PYTORCH_ALLOC_CONF"] != tc.torch {
			t.Errorf("%v: %v", tc.ids, env)
		}
	}
}

// TestSecondNamesOfOnePodChangeNoOther covers two waiting pods with the same amount. The kubelet's call names
// neither of them.
func TestSecondNamesOfOnePodChangeNoOther(t *testing.T) {
	const given = "per_process_memory_fraction:0.0965"
	sets := func(value string) map[string]map[string]string {
		return map[string]map[string]string{"main": {"PYTORCH_CUDA_ALLOC_CONF": value}}
	}
	for name, tc := range map[string]struct {
		a, b map[string]map[string]string
		asks gpu.Units // of pod b
		want string
	}{
		"only one sets one":    {sets("backend:native"), nil, 1, given},
		"only the other does":  {nil, sets("backend:native"), 1, given},
		"each sets its own":    {sets("backend:native"), sets("backend:other"), 1, given},
		"both set the same":    {sets("backend:native"), sets("backend:native"), 1, "backend:native," + given},
		"the other wants more": {sets("backend:native"), nil, 2, "backend:native," + given},
		"none sets one":        {nil, nil, 1, given},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pod("a", 1, uuidA, app(1)), pod("b", 1, uuidA, app(tc.asks))
			a.Seconds, b.Seconds = tc.a, tc.b
			n := newNode(t, func(c *Config) { c.Containers.Frameworks = []render.Framework{"pytorch"} }, nil, a, b)
			got, err := n.Allocate(t.Context(), "aaaaaaaa-0")
			if err != nil {
				t.Fatal(err)
			}
			if conf := got.GetEnvs()["PYTORCH_ALLOC_CONF"]; conf != tc.want {
				t.Errorf("PYTORCH_ALLOC_CONF=%q, want %q", conf, tc.want)
			}
		})
	}
}

func TestAllocateRefuses(t *testing.T) {
	huge := make([]string, 60000)
	for i := range huge {
		huge[i] = fmt.Sprintf("aaaaaaaa-%d", i)
	}
	for _, tc := range []struct {
		name string
		ids  []string
		want string
	}{
		{"no ID", nil, "no slots are named"},
		{"an empty ID", []string{""}, "is not of the form"},
		{"an ID of another node", []string{"cccccccc-0"}, "names a GPU that this node does not have"},
		{"an ID past the end", []string{"aaaaaaaa-8"}, "past the end"},
		{"a number that is none", []string{"aaaaaaaa--1"}, "does not end in a number"},
		{"an ID twice", []string{"aaaaaaaa-0", "aaaaaaaa-0"}, "named twice"},
		{"unequal parts of two GPUs", []string{"aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0"}, "unequal parts (GPU0 2, GPU1 1)"},
		{"two GPUs for a pod of one", []string{"aaaaaaaa-0", "bbbbbbbb-0"}, "is to have 1 GPUs"},
		{"more than there is", huge, "past the end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
			_, err := n.Allocate(t.Context(), tc.ids...)
			wantStatus(t, err, codes.FailedPrecondition, tc.want)
			if len(tc.ids) > 0 && tc.name != "two GPUs for a pod of one" {
				if err := n.Start(t.Context(), tc.ids...); err == nil {
					t.Error("and the container would start")
				}
			}
		})
	}
	n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("XID 79") })
	_, err := n.Allocate(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1")
	wantStatus(t, err, codes.FailedPrecondition, "is not healthy: XID 79")
}

func TestPreferredAllocationOfNonsense(t *testing.T) {
	n := newNode(t, nil, nil, pod("a", 1, uuidA, app(2)))
	for _, tc := range []struct {
		available, must []string
		size            gpu.Units
	}{
		{nil, nil, 0},
		{nil, nil, -1},
		{nil, nil, 2},
		{[]string{"x", "y"}, nil, 2},
		{[]string{"aaaaaaaa-0"}, []string{"x"}, 2},
		{[]string{"aaaaaaaa-0", "aaaaaaaa-1"}, []string{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-2"}, 2},
		{[]string{"aaaaaaaa-0", "aaaaaaaa-1"}, []string{"aaaaaaaa-7"}, 2},
	} {
		if ids, err := n.Preferred(t.Context(), tc.available, tc.must, tc.size); err == nil {
			t.Errorf("%v, %v, %d: answered %v", tc.available, tc.must, tc.size, ids)
		}
	}
	ctx := t.Context()
	if out, err := n.Client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{}); err != nil || len(out.GetContainerResponses()) != 0 {
		t.Errorf("no container: %v, %v", out, err)
	}
	if out, err := n.Client.Allocate(ctx, &pluginapi.AllocateRequest{}); err != nil || len(out.GetContainerResponses()) != 0 {
		t.Errorf("no container: %v, %v", out, err)
	}
	nothing := []*pluginapi.ContainerAllocateRequest{{}}
	if _, err := n.Client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: nothing}); err == nil {
		t.Error("a container without IDs was allocated")
	}
}

// After a container got all units of a GPU, the GPU offers one unit less.
func TestAContainerStartsAgainOnAGPUThatOffersLess(t *testing.T) {
	p, next := pod("p", 1, uuidA, app(8)), pod("next", 2, uuidA, app(1))
	n := newNode(t, nil, nil, p)
	if _, err := n.Admit(t, p); err != nil {
		t.Fatal(err)
	}
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Allocatable = 7 })
	ids := convert[string](n.Kubelet.Allocated()[0].Slots)
	if err := n.Start(t.Context(), ids...); err != nil {
		t.Errorf("it does not start again: %v", err)
	}
	if env, ok, err := n.Containers.Environment(t.Context(), "ns", "p", "main", nil); err != nil || !ok || env["GPUMEM_LIMIT_MIB"] != "8192" {
		t.Errorf("its environment is %v, %t, %v", env, ok, err)
	}
	if grants, err := n.Containers.Grants(t.Context()); err != nil || len(grants) != 1 || grants[0].Bytes != 8<<30 {
		t.Errorf("it was granted %v, %v", grants, err)
	}
	n.Pods.Add(next)
	_, err := n.Allocate(t.Context(), "aaaaaaaa-7")
	wantStatus(t, err, codes.FailedPrecondition, "slot aaaaaaaa-7 belongs to container main of pod ns/p")
	n.Kubelet.Free()
	_, err = n.Allocate(t.Context(), "aaaaaaaa-7")
	wantStatus(t, err, codes.FailedPrecondition, "past the end")
	wantStatus(t, n.Start(t.Context(), "aaaaaaaa-7"), codes.FailedPrecondition, "past the end")
}

func TestPreStartOfAPodOnTwoGPUs(t *testing.T) {
	n := newNode(t, nil, []string{"ns/a"}, pod("a", 1, uuidA, container("one", placement.App, 1), container("two", placement.App, 1)))
	n.Kubelet.Give("a", "one", []string{"aaaaaaaa-0"})
	n.Kubelet.Give("a", "two", []string{"bbbbbbbb-0"})
	for range 2 {
		wantStatus(t, n.Start(t.Context(), "bbbbbbbb-0"), codes.FailedPrecondition, "slots of 2 GPUs and asks for 1")
	}
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/a GPUMemoryMixed"}, n.Notes.All()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := n.Pods.Corrected(); got != nil {
		t.Errorf("what no annotation can say was written: %v", got)
	}
}

// A container with slots on fewer GPUs than its pod requests does not start, because its program would see GPUs
// on which the container has no slots.
func TestAContainerOfFewerGPUsThanItsPodDoesNotStart(t *testing.T) {
	p := pod("a", 1, uuidA, container("one", placement.App, 2), container("two", placement.App, 2))
	p.Request.Count = 2
	n := newNode(t, nil, []string{"ns/a"}, p)
	n.Kubelet.Give("a", "one", []string{"aaaaaaaa-0", "bbbbbbbb-0"})
	n.Kubelet.Give("a", "two", []string{"aaaaaaaa-1", "aaaaaaaa-2"})
	n.Pods.Settle("a")
	if err := n.Start(t.Context(), "aaaaaaaa-0", "bbbbbbbb-0"); err != nil {
		t.Errorf("one: %v", err)
	}
	wantStatus(t, n.Start(t.Context(), "aaaaaaaa-1", "aaaaaaaa-2"), codes.FailedPrecondition, "pod ns/a has slots of 1 GPUs and asks for 2")
}

func TestPreStartDoesNotDependOnTheAPIServer(t *testing.T) {
	n := newNode(t, nil, []string{"ns/a"}, pod("a", 1, "", app(1)))
	n.Kubelet.Give("a", "main", []string{"aaaaaaaa-0"})
	n.Pods.Settle("a")
	n.Pods.Fail = errors.New("the API server is down")
	if err := n.Start(t.Context(), "aaaaaaaa-0"); err != nil {
		t.Fatalf("start: %v", err)
	}
	if err := n.Reconciler.Pass(t.Context()); err == nil {
		t.Error("the loop does not know that it must try again")
	}
	n.Pods.Fail = nil
	if err := n.Reconciler.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"ns/a [" + string(uuidA) + "] by the node"}, n.Pods.Corrected()); diff != "" {
		t.Errorf("corrections (-want +got):\n%s", diff)
	}
	if err := n.Reconciler.Pass(t.Context()); err != nil || len(n.Pods.Corrected()) != 1 {
		t.Errorf("written again: %v, %v", n.Pods.Corrected(), err)
	}
}

// received converts one list to the health and the number of slots by GPU.
func received(t *testing.T, stream pluginapi.DevicePlugin_ListAndWatchClient) map[string]int {
	t.Helper()
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for _, d := range list.GetDevices() {
		if d.GetTopology() != nil {
			t.Errorf("device %s has a topology", d.GetID())
		}
		out[d.GetID()[:8]+" "+d.GetHealth()]++
	}
	return out
}

func TestListAndWatch(t *testing.T) {
	n := newNode(t, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), plugintest.Patience)
	defer cancel()
	stream, err := n.Client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	want := func(want map[string]int) {
		t.Helper()
		if diff := cmp.Diff(want, received(t, stream)); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	}
	want(map[string]int{"aaaaaaaa Healthy": 8, "bbbbbbbb Healthy": 8})
	n.Source.Set(func(inv *gpu.Inventory) { inv.DriverVersion = "581" }) // irrelevant to the kubelet
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("gone") })
	want(map[string]int{"aaaaaaaa Unhealthy": 8, "bbbbbbbb Healthy": 8})
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Status{} })
	want(map[string]int{"aaaaaaaa Healthy": 8, "bbbbbbbb Healthy": 8})
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices = nil })
	want(map[string]int{})
}

func TestOptions(t *testing.T) {
	n := newNode(t, nil, nil)
	got, err := n.Client.GetDevicePluginOptions(t.Context(), &pluginapi.Empty{})
	if err != nil || !got.GetPreStartRequired() || !got.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", got, err)
	}
}

func TestAUnitThatIsTooSmall(t *testing.T) {
	n := newNode(t, nil, nil)
	n.Source.Set(func(inv *gpu.Inventory) {
		inv.UnitMiB = 1
		for i := range inv.Devices {
			inv.Devices[i].MemoryMiB, inv.Devices[i].Allocatable = 81559, 81000
		}
	})
	if o, _ := n.Offers.Current(); !o.Refused || !strings.Contains(o.Reason, "use --unit-mib=2 or more") {
		t.Errorf("refused %t: %s", o.Refused, o.Reason)
	}
	if inv, _ := n.Offers.Inventory(); len(inv.Devices) != 0 {
		t.Errorf("%d devices are offered all the same", len(inv.Devices))
	}
	ctx, cancel := context.WithTimeout(t.Context(), plugintest.Patience)
	defer cancel()
	stream, err := n.Client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if got := received(t, stream); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
	announced, stop := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- n.Announcer.Announce(announced) }()
	n.Source.Set(func(*gpu.Inventory) {}) // no change
	n.Source.Set(func(inv *gpu.Inventory) { *inv = plugintest.TwoGPUs() })
	if got := received(t, stream); got["aaaaaaaa Healthy"] != 8 {
		t.Errorf("sent %v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAnnounce(t *testing.T) {
	n := newNode(t, nil, nil)
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[1].UUID = inv.Devices[0].UUID })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Announcer.Announce(ctx); err != nil {
		t.Error(err)
	}
	got := n.Notes.All()
	if len(got) != 1 || !strings.HasPrefix(got[0], "node GPUMemoryNotOffered: NVML's answers make no sense") {
		t.Errorf("events %q", got)
	}
}
