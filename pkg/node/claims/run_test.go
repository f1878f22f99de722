package claims

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/render"
)

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, plugintest.Patience, true, func(context.Context) (bool, error) {
		return holds(), nil
	})
	if err != nil {
		t.Fatal("waited for: " + what)
	}
}

// The test replaces the kubelet: it finds the driver by its registration, and prepares and unprepares a claim
// over the driver's socket.
func TestTheKubeletFindsTheDriver(t *testing.T) {
	kubelet, cdi := t.TempDir(), t.TempDir()
	disk, err := NewFolders(kubelet, cdi, domain)
	if err != nil {
		t.Fatal(err)
	}
	source := plugintest.NewSource(plugintest.TwoGPUs())
	claim := allocated("a", result(gpuA, 3, 0))
	client := fake.NewClientset(claim)
	recovered, err := Recover(t.Context(), disk, nil, domain, node, 1024, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	driver := New(Config{
		Domain: domain, Node: node, Containers: render.DefaultConfig(),
		Ready: func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
	}, grants.NewOffers(source, false), disk, recovered, zap.NewNop())
	type told struct {
		ids     []gpu.UUID
		all     bool
		changed chan struct{}
	}
	var said atomic.Pointer[told]
	said.Store(&told{changed: make(chan struct{})})
	say := func(all bool, ids ...gpu.UUID) {
		close(said.Swap(&told{ids, all, make(chan struct{})}).changed)
	}
	closed := func() ([]gpu.UUID, bool, <-chan struct{}) {
		now := said.Load()
		return now.ids, now.all, now.changed
	}
	r := NewRunner(driver, client, kubelet, "uid-of-the-node", closed, zap.NewNop())
	if got := r.Missing(); !strings.Contains(got, "not known yet") {
		t.Errorf("before it runs, missing is %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	registry := registerapi.NewRegistrationClient(dial(t, filepath.Join(kubelet, "plugins_registry", domain+"-reg.sock")))
	info, err := registry.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetName() != domain || info.GetType() != registerapi.DRAPlugin {
		t.Fatalf("%+v, %v", info, err)
	}
	// The library's server may answer before Run has stored the helper.
	eventually(t, "the kubelet has not registered it", func() bool { return strings.Contains(r.Missing(), "has not registered") })
	if _, err := registry.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is missing", func() bool { return r.Missing() == "" })
	taints := func() int {
		list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Spec.Devices) != 2 || *list.Items[0].Spec.NodeName != node {
			return -1
		}
		return len(list.Items[0].Spec.Devices[0].Taints) + 10*len(list.Items[0].Spec.Devices[1].Taints)
	}
	eventually(t, "both GPUs are published", func() bool { return taints() == 0 })
	source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("XID 79") })
	eventually(t, "the GPU that failed has a taint", func() bool { return taints() == 1 })
	source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Status{} })
	eventually(t, "the GPU that works again has none", func() bool { return taints() == 0 })
	say(false, plugintest.GPUA)
	eventually(t, "the GPU that is cordoned has a taint", func() bool { return taints() == 1 })
	say(true)
	eventually(t, "both GPUs of a node that is to change have a taint", func() bool { return taints() == 11 })
	say(false)
	eventually(t, "no GPU has a taint", func() bool { return taints() == 0 })

	plugin := drapb.NewDRAPluginClient(dial(t, info.GetEndpoint()))
	asked := []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}}
	eventually(t, "the GPU is back", func() bool { o, _ := driver.offers.Current(); return o.Inventory.Devices[0].Advertised() })
	prepared, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: asked})
	if err != nil {
		t.Fatal(err)
	}
	if got := prepared.GetClaims()["uid-a"]; got.GetError() != "" || len(got.GetDevices()) != 1 || got.GetDevices()[0].GetCdiDeviceIds()[0] != "gpumem.dev/claim=uid-a" || got.GetDevices()[0].GetShareId() != "share" {
		t.Errorf("prepared: %+v", got)
	}
	if uids, err := disk.Specs(); err != nil || len(uids) != 1 {
		t.Errorf("CDI files %v, %v", uids, err)
	}
	given, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: asked})
	if err != nil || given.GetClaims()["uid-a"].GetError() != "" {
		t.Errorf("given back: %+v, %v", given, err)
	}
	if uids, err := disk.Specs(); err != nil || len(uids) != 0 {
		t.Errorf("CDI files %v, %v", uids, err)
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Permanent errors appear in the driver's readiness.
func TestErrorsOfTheLibrary(t *testing.T) {
	for _, test := range []struct {
		err  error
		told bool
	}{
		{errors.New("the slice is invalid"), true},
		{kubeletplugin.ErrRecoverable, false},
	} {
		r := NewRunner(nil, nil, "", "", nil, zap.NewNop())
		r.HandleError(t.Context(), test.err, "publish")
		if told := strings.Contains(r.Missing(), "publish: "+test.err.Error()); told != test.told {
			t.Errorf("%v: missing is %q", test.err, r.Missing())
		}
	}
}

var _ kubeletplugin.DRAPlugin = (*Runner)(nil)
