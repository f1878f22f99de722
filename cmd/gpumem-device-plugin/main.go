// Command gpumem-device-plugin offers the GPU memory of its node to the kubelet, passes the assigned GPUs to
// containers, and publishes the node's inventory and the actual assignments of pods. "gpumem-device-plugin mps"
// runs NVIDIA's MPS daemon instead, and "gpumem-device-plugin was-reset" returns GPUs to use after a reset.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
	"github.com/gpumem/gpumem/pkg/node/podresources"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(daemon.Main("gpumem-device-plugin", run)) }

// run is main with its arguments and output streams as parameters. It returns pflag.ErrHelp after it has printed
// the help or the version.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == mpsCommand {
		return runMPS(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == resetCommand {
		return runReset(args[1:], stdout)
	}
	var opts options
	if err := opts.parse(args, stdout); err != nil {
		return err
	}
	cfg, err := opts.config()
	if err != nil {
		return err
	}
	log, client, err := opts.Start("gpumem-device-plugin", version, stderr)
	if err != nil {
		return err
	}
	return start(ctx, log, cfg, client)
}

// start creates the parts and runs them. After the context is done, they run until the process may end
// (node.shutdown).
func start(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface) (err error) {
	snapshot, ok := readSnapshot(ctx, log, cfg, client)
	if !ok {
		return nil
	}
	var disk claims.Folders
	var prepared map[types.UID]claims.Claim
	if cfg.claims {
		if disk, err = claims.NewFolders(cfg.kubeletRootDir, cfg.cdiDir, cfg.names.Domain()); err != nil {
			return err
		}
		if prepared, ok = recoverClaims(ctx, log, cfg, client, disk); !ok {
			return nil
		}
	}
	served, unchanged := cfg.choose(snapshot, prepared)
	log.Info("the node serves", zap.String("resource", cfg.describe(served)), zap.Int64("unitMiB", served.unitMiB), zap.String("unchanged", unchanged))
	if err := cfg.canServe(served, snapshot.Claimers); err != nil {
		return err
	}
	wants, published := cfg.wants, cfg.lastInventory(log, client, snapshot)
	cfg = cfg.serving(served)
	cfg.plugin.Published = snapshot.Offered
	allocate := byResource
	if served.api == api.ByClaims {
		allocate = byClaims(disk, prepared, snapshot.UID)
	}
	kubelet, err := podresources.New(filepath.Join(cfg.kubeletDir, "pod-resources", "kubelet.sock"), cfg.resource(), string(cfg.names.GPUCore()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kubelet.Close()) }()
	stopCtx := ctx
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	events, err := nodeapi.NewEvents(ctx, client, "gpumem-device-plugin", cfg.nodeName)
	if err != nil {
		return err
	}
	if unchanged != "" {
		events.Node(event.UnitsNotChanged, unchanged)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.probeListen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	n := newNode(log, cfg, client, kubelet, events, published, allocate)
	n.object.SetAPIs(served.api, cfg.apis())
	for _, run := range n.start(listener) {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error {
		defer end()
		n.shutdown(ctx, n.watchLabel(stopCtx, func(label string) bool { return wants(label) != served }))
		return nil
	})
	log.Info("serving", zap.Stringer("probes", listener.Addr()))
	err = group.Wait()
	log.Info("stopped", zap.Error(err))
	return err
}
