package cdi

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"go.uber.org/zap"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	nodenvml "github.com/gpumem/gpumem/pkg/node/nvml"
)

// class is the part of the GPUs' kind after the domain.
const class = "gpu"

// Kind returns the kind of the GPUs under a domain. A GPU's name is KIND=UUID.
func Kind(domain string) string { return domain + "/" + class }

// retry is the interval at which Run checks the file, and writes it again after a failure or a change by others.
const retry = 10 * time.Second

// timeout bounds Run's wait for NVML, and thus the delay of changes from the source.
const timeout = 5 * time.Second

// Writer maintains the node's CDI file.
type Writer struct {
	Domain     string
	Dir        string // directory in which the container runtime searches for CDI files
	Hook       string // path of nvidia-cdi-hook on the node
	DriverRoot string // the driver's root, as this process sees it
	NodeRoot   string // the driver's root, as the node sees it

	Open   func() (lib nvml.Interface, path string)
	Load   func() string // identifies one load of the driver, because a reload can renumber the device nodes
	Source inventory.Upstream
	Log    *zap.Logger

	inventory.Stage // marks GPUs that the file does not describe as unhealthy
	calls           *nodenvml.Bounded
	written         []string // the load of the driver, followed by the GPUs in the file
	file            os.FileInfo
	failed          error
}

// NewWriter returns a writer that offers the source's GPUs once Run has described them.
func NewWriter(w Writer) *Writer {
	w.Stage, w.calls = inventory.NewStage(w.Source), nodenvml.NewBounded(timeout)
	return &w
}

// Run writes the file when the GPUs change, the driver is reloaded, or the file was changed or removed, until
// the context is done.
func (w *Writer) Run(ctx context.Context) error {
	return w.Watch(ctx, retry, func(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) {
		described := []string{w.load(inv.DriverVersion)}
		for _, d := range inv.Devices {
			described = append(described, string(d.UUID))
		}
		if len(inv.Devices) > 0 && (w.failed != nil || !slices.Equal(described, w.written) || !w.intact()) {
			w.describe(ctx, described, inv.DriverVersion)
		}
		return w.markUndescribed(inv, described[0]), reason
	})
}

// load identifies one load of the driver. It includes the version, because file names of the driver contain it.
func (w *Writer) load(version string) string { return version + " " + w.Load() }

// description is NVML's answer about the GPUs.
type description struct {
	of     []string // as in Writer.written
	spec   *specs.Spec
	err    error
	former []string // see Writer.former; nil if describe needs none
}

// describe writes the file, and logs each new outcome. If NVML hangs, a later call uses the late answer, provided
// that it describes the same GPUs.
func (w *Writer) describe(ctx context.Context, described []string, version string) {
	needsFormer := !w.intact()
	d, err := nodenvml.Call(ctx, w.calls, "describe", func() (d description) {
		d.of = described
		if d.spec, d.err = w.spec(); needsFormer {
			d.former = w.former(version)
		}
		return d
	})
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && !slices.Equal(d.of, described):
		d, err = description{}, nodenvml.ErrSlow
	case err == nil:
		err = d.err
	}
	if err == nil {
		err = checkpoint.WriteJSON(w.path(), d.spec, 0o644)
	}
	if err == nil {
		w.file, err = os.Stat(w.path())
	}
	switch {
	case err == nil:
		w.written = described
		w.Log.Info("described the GPUs to the container runtime", zap.String("file", w.path()))
	case w.failed == nil || w.failed.Error() != err.Error():
		w.Log.Error("the GPUs cannot be described to the container runtime", zap.Error(err))
	}
	if w.failed = err; err != nil && !w.intact() {
		w.written = append([]string{described[0]}, d.former...)
		if len(d.former) > 0 {
			w.file, _ = os.Stat(w.path())
		}
	}
}

// former returns the GPUs in a file that an earlier process wrote for this driver, without GPUs whose device node
// now has another number. It returns no MIG instances, because NVML does not report the numbers of their device
// nodes.
func (w *Writer) former(version string) (described []string) {
	data, err := os.ReadFile(w.path())
	if err != nil {
		return nil
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil || spec.Kind != Kind(w.Domain) {
		return nil
	}
	if !slices.ContainsFunc(spec.ContainerEdits.Mounts, func(m *specs.Mount) bool { return strings.HasSuffix(m.HostPath, ".so."+version) }) {
		return nil
	}
	lib, _ := w.Open()
	if lib.Init() != nvml.SUCCESS {
		return nil
	}
	defer func() { _ = lib.Shutdown() }() // the prober has its own session
	for _, d := range spec.Devices {
		handle, ret := lib.DeviceGetHandleByUUID(d.Name)
		if ret != nvml.SUCCESS {
			continue
		}
		minor, ret := handle.GetMinorNumber()
		isNode := func(n *specs.DeviceNode) bool { return n.Path == fmt.Sprintf("/dev/nvidia%d", minor) }
		if ret == nvml.SUCCESS && slices.ContainsFunc(d.ContainerEdits.DeviceNodes, isNode) {
			described = append(described, d.Name)
		}
	}
	return described
}

// intact reports whether the file is still the one that this process wrote.
func (w *Writer) intact() bool {
	now, err := os.Stat(w.path())
	return err == nil && w.file != nil && os.SameFile(now, w.file) && now.ModTime().Equal(w.file.ModTime())
}

// markUndescribed marks each GPU as unhealthy unless the file describes it for this load of the driver. The
// container runtime would not find the GPU, or would use another one.
func (w *Writer) markUndescribed(inv gpu.Inventory, load string) gpu.Inventory {
	described := w.intact() && len(w.written) > 0 && w.written[0] == load
	for i := range inv.Devices {
		d := &inv.Devices[i]
		if described && slices.Contains(w.written, string(d.UUID)) || !d.Status.Works() {
			continue
		}
		why := "the container runtime does not know it: " + w.path() + " is not written yet"
		if w.failed != nil {
			why = fmt.Sprintf("the container runtime does not know it: %v", w.failed)
		}
		d.Status = gpu.Unhealthy(why)
	}
	return inv
}

func (w *Writer) path() string { return filepath.Join(w.Dir, w.Domain+"-"+class+".json") }

// spec describes the GPUs that NVML lists.
func (w *Writer) spec() (*specs.Spec, error) {
	lib, _ := w.Open()
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	described, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(lib), nvcdi.WithLogger(quiet{w.Log.Sugar()}),
		nvcdi.WithVendor(w.Domain), nvcdi.WithClass(class), nvcdi.WithDeviceNamers(byUUID),
		nvcdi.WithDriverRoot(w.DriverRoot), nvcdi.WithDevRoot(w.DriverRoot), nvcdi.WithNVIDIACDIHookPath(w.Hook),
	)
	if err != nil {
		return nil, fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	found, err := described.GetSpec()
	if err != nil {
		return nil, fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	raw := found.Raw()
	onNode := root.New(root.WithRoot(w.DriverRoot), root.WithTargetRoot(w.NodeRoot), root.WithRelativeTo("host"))
	if err := onNode.Transform(raw); err != nil {
		return nil, fmt.Errorf("describe the GPUs by NVIDIA's library: %w", err)
	}
	return raw, nil
}

// quiet passes the messages of NVIDIA's library to the log at debug level. Most of them report libraries that
// this driver does not have.
type quiet struct{ log *zap.SugaredLogger }

func (q quiet) Debugf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Errorf(format string, args ...any)   { q.log.Debugf(format, args...) }
func (q quiet) Infof(format string, args ...any)    { q.log.Debugf(format, args...) }
func (q quiet) Warningf(format string, args ...any) { q.log.Debugf(format, args...) }
func (q quiet) Tracef(format string, args ...any)   { q.log.Debugf(format, args...) }
