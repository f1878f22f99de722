package claims

import (
	"encoding/json"
	"maps"
	"slices"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/render"
)

// cdiVersion is the first version in which a device name can be a UID. Older runtimes could not read files of
// newer versions.
const cdiVersion = "0.5.0"

// cdiClass is the class of gpumem's CDI devices, one per claim.
const cdiClass = "claim"

// spec returns the CDI file of a claim, and the names of the CDI devices for its containers.
func spec(cfg render.Config, domain string, c Claim, inv gpu.Inventory) (file []byte, names []string, err error) {
	memory, cores, err := c.grant(inv)
	if err != nil {
		return nil, nil, err
	}
	inv.UnitMiB, inv.Enforcement, inv.MPS = c.UnitMiB, c.Enforcement, c.MPS > 0
	if cfg.Strategy == render.CDIAnnotations {
		cfg.Strategy = render.CDICRI // a CDI file cannot add annotations, and the kubelet passes names
	}
	response := cfg.Response(gpu.Memory, memory, inv)
	if cores.SlotsPerDevice > 0 {
		maps.Copy(response.Envs, cfg.Response(gpu.Cores, cores, inv).GetEnvs())
	}
	response.Envs[claimOf] = string(c.UID)
	kind := domain + "/" + cdiClass
	names = append(names, kind+"="+string(c.UID))
	for _, d := range response.GetCdiDevices() {
		names = append(names, d.GetName())
	}
	file, err = json.Marshal(cdi.Spec{
		Version: cdiVersion, Kind: kind,
		Devices: []cdi.Device{{Name: string(c.UID), ContainerEdits: edits(response)}},
	})
	return file, names, err
}

// edits converts a device plugin's response to the edits of a container.
func edits(r *pluginapi.ContainerAllocateResponse) (out cdi.ContainerEdits) {
	for _, name := range slices.Sorted(maps.Keys(r.GetEnvs())) {
		out.Env = append(out.Env, name+"="+r.GetEnvs()[name])
	}
	for _, m := range r.GetMounts() {
		access := "rw"
		if m.GetReadOnly() {
			access = "ro"
		}
		out.Mounts = append(out.Mounts, &cdi.Mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), Options: []string{"rbind", "rprivate", access}})
	}
	return out
}
