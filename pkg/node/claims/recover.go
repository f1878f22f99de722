package claims

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// Recover returns the prepared claims of a checkpoint, and rebuilds a lost or unusable checkpoint. For that, it
// calls read, which returns the claims of the node's pods. Recover considers a claim prepared if the claim has a
// CDI file, and reads the claim's level from the file. On an error, the caller retries.
func Recover(ctx context.Context, disk Disk, read func(context.Context) ([]*resourceapi.ResourceClaim, error), domain, node string, unitMiB int64, log *zap.Logger) (prepared map[types.UID]Claim, err error) {
	prepared, found, err := readClaims(disk, log)
	if found || err != nil {
		return prepared, err
	}
	uids, err := disk.Specs()
	if err != nil || len(uids) == 0 {
		return prepared, err
	}
	claims, err := read(ctx)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		c, err := parse(claim, domain, node)
		if err == nil {
			err = c.complete(disk, unitMiB)
		}
		if err != nil {
			log.Info("claim is not prepared", zap.String("claim", claim.Namespace+"/"+claim.Name), zap.String("uid", string(claim.UID)), zap.Error(err))
			continue
		}
		prepared[c.UID] = c
	}
	log.Warn("the checkpoint of prepared claims is rebuilt", zap.Int("claims", len(prepared)), zap.Int("CDI files", len(uids)))
	return prepared, writeClaims(disk, prepared)
}

// complete sets the fields that an allocation lacks, from the claim's CDI file: level, GPUs and sizes.
func (c *Claim) complete(disk Disk, unitMiB int64) error {
	data, err := disk.ReadSpec(c.UID)
	if err != nil {
		return err
	}
	var file cdi.Spec
	if err := json.Unmarshal(data, &file); err != nil || len(file.Devices) != 1 {
		return fmt.Errorf("its CDI file has %d devices: %w", len(file.Devices), err)
	}
	env := make(map[string]string)
	for _, variable := range file.Devices[0].ContainerEdits.Env {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	given := render.ReadEnvironment(env)
	if c.Enforcement = given.Level; given.MPS {
		c.MPS = mps.Protocol
	}
	if !c.InShares() {
		c.UnitMiB = unitMiB
	}
	parts := c.parts()
	for i := range c.Shares {
		for _, uuid := range given.GPUs {
			if resourceslices.DeviceName(uuid) == c.Shares[i].Device {
				c.Shares[i].UUID = uuid
			}
		}
		if s := &c.Shares[i]; s.Shares > 0 {
			s.MiB = given.LimitMiB * s.Shares / parts[s.Device].amount
		}
	}
	return nil
}
