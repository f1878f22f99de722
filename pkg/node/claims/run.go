package claims

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Runner serves a Driver to the kubelet, and publishes its devices to the API server.
type Runner struct {
	*Driver

	client  kubernetes.Interface
	kubelet string    // path of the kubelet's directory
	node    types.UID // UID of the node's object, which owns the ResourceSlices
	closed  Closed
	log     *zap.Logger

	mu     sync.Mutex // guards the rest
	helper *kubeletplugin.Helper
	failed error // last error that the library reported for the published devices; nil if none
}

// Closed returns the GPUs that accept no new claims, whether all GPUs are closed, and a channel that is closed
// on a change.
type Closed func() (ids []gpu.UUID, all bool, changed <-chan struct{})

// NewRunner returns a runner. The kubelet's directory must have the same path in this process as on the node,
// and must contain the directories from NewFolders.
func NewRunner(driver *Driver, client kubernetes.Interface, kubelet string, node types.UID, closed Closed, log *zap.Logger) *Runner {
	return &Runner{Driver: driver, client: client, kubelet: kubelet, node: node, closed: closed, log: log}
}

// HandleError implements kubeletplugin.DRAPlugin.
func (r *Runner) HandleError(_ context.Context, err error, msg string) {
	err = fmt.Errorf("%s: %w", msg, err)
	r.log.Warn("the library of the driver reports an error", zap.Error(err))
	var dropped *resourceslice.DroppedFieldsError
	if errors.As(err, &dropped) || !errors.Is(err, kubeletplugin.ErrRecoverable) {
		r.fail(err)
	}
}

func (r *Runner) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
}

// Run serves the kubelet until the context is done.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.Restore(); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, r,
		kubeletplugin.KubeClient(r.client), kubeletplugin.NodeName(r.cfg.Node), kubeletplugin.NodeUID(r.node), kubeletplugin.DriverName(r.cfg.Domain),
		kubeletplugin.RegistrarDirectoryPath(registry(r.kubelet)), kubeletplugin.PluginDataDirectoryPath(state(r.kubelet, r.cfg.Domain)))
	if err != nil {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	defer helper.Stop()
	r.mu.Lock()
	r.helper = helper
	r.mu.Unlock()
	for {
		offer, changed := r.offers.Current()
		closed, all, others := r.closed()
		inv := api.Cordon(offer.Inventory, closed)
		for i := range inv.Devices {
			inv.Devices[i].Status.Cordoned = all || inv.Devices[i].Status.Cordoned
		}
		r.fail(nil) // the previous errors concern the previous devices
		if err := helper.PublishResources(ctx, Resources(inv, r.cfg.Domain, r.cfg.Node, r.cfg.Cores)); err != nil {
			return fmt.Errorf("publish the devices: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-others:
		}
	}
}

// Missing returns the reason why claims cannot be prepared yet, or an empty string.
func (r *Runner) Missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.failed != nil:
		return r.failed.Error()
	case r.helper == nil:
		return "the GPUs of the node are not known yet"
	case r.helper.RegistrationStatus() == nil:
		return "the kubelet has not registered the driver yet"
	case !r.helper.RegistrationStatus().PluginRegistered:
		return "the kubelet refuses the driver: " + r.helper.RegistrationStatus().Error
	}
	return ""
}
