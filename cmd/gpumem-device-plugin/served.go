package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
)

// served is the API and the unit in which a node allocates its GPU memory.
type served struct {
	api     string // value of the node's label; empty for the extended resource in units of memory
	unitMiB int64  // 0 for shares
}

// drained is the time that a node must spend without allocations before it serves another API or unit. During
// this time, a scheduler that has not read the new label yet can still send a pod.
const drained = 10 * time.Second

// wants returns the API and the unit that a node with this label requests.
func (c config) wants(label string) served {
	switch {
	case label == api.ByClaims && c.claims && c.claimsInShares:
		return served{api: api.ByClaims}
	case label == api.ByClaims && c.claims:
		return served{api.ByClaims, c.unitMiB}
	case label == api.InShares && c.shares:
		return served{api: api.InShares}
	default:
		return served{unitMiB: c.unitMiB}
	}
}

// canServe returns an error if the flags disable the API that the node must keep serving.
func (c config) canServe(next served, claimers []string) error {
	if next.api == api.ByClaims && !c.claims {
		return fmt.Errorf("--claims is off, and pods of the node have claims to its GPU memory: %s. Turn claims on again until these pods have ended: without claims the kubelet cannot end them",
			strings.Join(claimers, ", "))
	}
	return nil
}

// choose returns the API and the unit of the node, and a reason if they differ from the node's label and the flags.
// The node keeps its former API and unit while pods or claims hold memory through them. Otherwise both APIs could
// allocate the same memory, and the pods' limits and slots would not match the unit.
func (c config) choose(snapshot nodeapi.Snapshot, prepared map[types.UID]claims.Claim) (next served, unchanged string) {
	wanted := c.wants(snapshot.Labels[c.names.API()])
	former, remaining := c.formerAPI(snapshot, prepared)
	switch {
	case former == wanted || len(remaining) == 0:
		return wanted, ""
	case former.api == "" && wanted.api == "":
		unchanged = fmt.Sprintf("unitMiB is %d now, and the node keeps units of %d MiB and takes no new pods, because pods have such units: %s. Drain the node, or set unitMiB back to %d.",
			wanted.unitMiB, former.unitMiB, strings.Join(remaining, ", "), former.unitMiB)
	default:
		unchanged = fmt.Sprintf("the node keeps serving %s instead of %s until these have ended: %s", c.describe(former), c.describe(wanted), strings.Join(remaining, ", "))
	}
	return former, unchanged
}

// formerAPI returns the last API and unit of the node, and the pods or claims that still hold memory through them.
func (c config) formerAPI(snapshot nodeapi.Snapshot, prepared map[types.UID]claims.Claim) (former served, remaining []string) {
	for _, claim := range prepared {
		if former = (served{api.ByClaims, c.unitMiB}); claim.InShares() {
			former.unitMiB = 0
		}
		remaining = append(remaining, claim.Namespace+"/"+claim.Name)
	}
	if !c.claims { // the plugin cannot read the checkpoint of claims
		former, remaining = served{api.ByClaims, c.unitMiB}, snapshot.Claimers
	}
	slices.Sort(remaining)
	offered := snapshot.Offered
	if len(offered.Devices) > 0 && offered.Devices[0].Status.ByClaims && snapshot.Admitted {
		offered = gpu.Inventory{} // published before these pods were admitted
	}
	some := len(offered.Devices) > 0
	switch {
	case len(remaining) > 0 || some && offered.Devices[0].Status.ByClaims:
		return former, remaining
	case offered.InShares() || !some && len(snapshot.Holders) == 0 && c.shares:
		return served{api: api.InShares}, snapshot.Sharers
	case some:
		return served{unitMiB: offered.UnitMiB}, snapshot.Holders
	default: // the plugin that served these pods published nothing
		return served{unitMiB: c.unitMiB}, snapshot.Holders
	}
}

func (c config) describe(s served) string {
	resource := string(c.names.Offered(s.unitMiB == 0))
	if s.api == api.ByClaims {
		return "claims to " + resource
	}
	return resource
}

// serving returns the config for a node that serves s. A share of a GPU includes the same share of its cores. A
// node that serves claims offers no MIG instances: a claim for several GPUs could get several instances, but a
// program can use only one.
func (c config) serving(s served) config {
	c.unitMiB = s.unitMiB
	if c.inShares() {
		c.cores = false
		c.plugin.Containers.ShareCores, c.plugin.Coreless = !c.plugin.Coreless, true
	}
	c.mig = c.mig && s.api != api.ByClaims
	return c
}

// inShares reports whether the node offers its GPUs in shares.
func (c config) inShares() bool { return c.unitMiB == 0 }

// resource returns the extended resource that the node offers.
func (c config) resource() string { return string(c.names.Offered(c.inShares())) }

// apis returns the APIs that the node's label can select.
func (c config) apis() (on []string) {
	if c.claims {
		on = append(on, api.ByClaims)
	}
	if c.shares {
		on = append(on, api.InShares)
	}
	return on
}

// replaced waits until the node must serve another API or unit, and nothing has been allocated for the time
// `drained`. It returns false if the context ends first. The functions isOther and allocated also return a
// channel that is closed when their result changes.
func replaced(ctx context.Context, isOther func() (bool, <-chan struct{}), allocated func() (int, <-chan struct{})) bool {
	for {
		asked, relabelled := isOther()
		n, changed := allocated()
		var over <-chan time.Time
		if asked && n == 0 {
			over = time.After(drained)
		}
		select {
		case <-ctx.Done():
			return false
		case <-relabelled:
		case <-changed:
		case <-over:
			return true
		}
	}
}

// stepRetry is the pause between attempts of a step that the start requires.
const stepRetry = 2 * time.Second

// retry repeats a step until it succeeds, and logs each new error. It returns false if the context ends first.
func retry[T any](ctx context.Context, pause time.Duration, log *zap.Logger, failed string, step func(context.Context) (T, error)) (out T, ok bool) {
	for last := ""; ; {
		out, err := step(ctx)
		if err == nil {
			return out, true
		}
		if err.Error() != last {
			log.Warn(failed, zap.Error(err))
		}
		last = err.Error()
		select {
		case <-ctx.Done():
			return out, false
		case <-time.After(pause):
		}
	}
}

// readSnapshot reads the node's labels, its pods and its last inventory. If labels can select an API or a unit,
// readSnapshot waits for the API server. Otherwise it tries once, because the plugin must also serve containers
// that restart while the API server is unreachable.
func readSnapshot(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface) (_ nodeapi.Snapshot, ok bool) {
	return retry(ctx, stepRetry, log, "the node is not known yet", func(ctx context.Context) (nodeapi.Snapshot, error) {
		snapshot, err := nodeapi.ReadSnapshot(ctx, client, cfg.names, cfg.nodeName)
		if err != nil && len(cfg.apis()) == 0 {
			log.Warn("the node is not known", zap.String("node", cfg.nodeName), zap.Error(err))
			return nodeapi.Snapshot{}, nil
		}
		return snapshot, err
	})
}

// lastInventory returns a function that returns the last published inventory. If the first read has failed, it
// reads the node again, because the capacity of a GPU depends on that inventory.
func (c config) lastInventory(log *zap.Logger, client kubernetes.Interface, snapshot nodeapi.Snapshot) func(context.Context) gpu.Inventory {
	var once sync.Once
	return func(ctx context.Context) gpu.Inventory {
		once.Do(func() {
			if snapshot.UID != "" {
				return
			}
			again, err := nodeapi.ReadSnapshot(ctx, client, c.names, c.nodeName)
			if err != nil {
				log.Warn("the last inventory is not known", zap.String("node", c.nodeName), zap.Error(err))
			}
			snapshot = again
		})
		return snapshot.Offered
	}
}

// recoverClaims returns the prepared claims. If their checkpoint is unusable, it waits for the API server and
// rebuilds the checkpoint.
func recoverClaims(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface, disk claims.Disk) (prepared map[types.UID]claims.Claim, ok bool) {
	return retry(ctx, stepRetry, log, "prepared claims are not known yet", func(ctx context.Context) (map[types.UID]claims.Claim, error) {
		return claims.Recover(ctx, disk, func(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
			return nodeapi.ReadClaims(ctx, client, cfg.nodeName)
		}, cfg.names.Domain(), cfg.nodeName, cfg.unitMiB, log)
	})
}
