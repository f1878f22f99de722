package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/test/cluster"
)

// By CDI a container gets its GPU's device file, and no other, and the driver's libraries, from a
// runtime that knows nothing of NVIDIA: the pod names no runtime class.
func TestGPUsByCDI(t *testing.T) {
	e := setup(t)
	hook := cluster.DriverRoot + "/usr/bin/nvidia-cdi-hook"
	for _, node := range []string{"node1", "node2", "node3"} {
		e.likeADriver(node)
	}
	e.atEnd(e.restore)
	if _, err := suite.stack.Install(e.ctx, e.cluster, append(slices.Clone(installed), "devicePlugin.deviceListStrategy=cdi-cri",
		"devicePlugin.cdi.hook="+hook, "devicePlugin.cdi.driverRoot="+cluster.DriverRoot)...); err != nil {
		t.Fatal(err)
	}
	for minor, name := range []string{"first", "second"} {
		// Of node1's GPUs the one with that minor number, which is its index there.
		e.create(e.pod(name, 3, onNode("node1"), func(pod *v1.Pod) {
			pod.Annotations = map[string]string{"gpumem.dev/gpu-uuid": e.gpu("node1", minor)}
		}))
		pod := e.running(name)
		env := e.environment(name, "main")
		if env["NVIDIA_VISIBLE_DEVICES"] != "void" || !slices.Equal(e.assigned(pod), []string{env["GPUMEM_GPU_UUID"]}) {
			t.Errorf("%s: NVIDIA_VISIBLE_DEVICES=%q and GPUMEM_GPU_UUID=%q, want void and the GPU of %v", name, env["NVIDIA_VISIBLE_DEVICES"], env["GPUMEM_GPU_UUID"], e.assigned(pod))
		}
		root := e.rootOf(pod)
		var devices []string
		entries, err := os.ReadDir(filepath.Join(root, "dev"))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "nvidia") {
				devices = append(devices, entry.Name())
			}
		}
		if want := []string{fmt.Sprint("nvidia", minor), "nvidiactl"}; !slices.Equal(devices, want) {
			t.Errorf("%s has the device files %v, want %v", name, devices, want)
		}
		if _, err := os.Stat(filepath.Join(root, "usr/lib64/libcuda.so."+driverVersion)); err != nil {
			t.Errorf("%s has no CUDA: %v", name, err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(e.cluster.NodeDir("node1"), "driver", "hooks"))
	if err != nil || !strings.Contains(string(calls), "update-ldcache") {
		t.Errorf("the hooks that ran: %q, %v", calls, err)
	}
}

// driverVersion is that of the simulated driver where a test does not say so.
const driverVersion = "580.65.06"

// likeADriver puts on a node what a driver and NVIDIA's toolkit have there, and the simulated
// driver does not: device files, libraries by their version, and a program for hooks, which writes down
// how it was called.
func (e *env) likeADriver(node string) {
	e.Helper()
	driver := filepath.Join(e.cluster.NodeDir(node), "driver")
	e.atEnd(func() {
		for _, path := range []string{"dev", "usr/bin", "hooks", "usr/lib64/libcuda.so." + driverVersion} {
			if err := os.RemoveAll(filepath.Join(driver, path)); err != nil {
				e.Error(err)
			}
		}
	})
	var errs []error
	for _, dir := range []string{"dev", "usr/bin"} {
		errs = append(errs, os.MkdirAll(filepath.Join(driver, dir), 0o755))
	}
	device := func(name string, minor uint32) {
		err := unix.Mknod(filepath.Join(driver, "dev", name), syscall.S_IFCHR|0o666, int(unix.Mkdev(195, minor)))
		if !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
		}
	}
	for minor := range uint32(8) {
		device(fmt.Sprint("nvidia", minor), minor)
	}
	device("nvidiactl", 255)
	errs = append(errs,
		os.Link(filepath.Join(driver, "usr/lib64/libnvidia-ml.so.1"), filepath.Join(driver, "usr/lib64/libcuda.so."+driverVersion)),
		os.WriteFile(filepath.Join(driver, "usr/bin/nvidia-cdi-hook"), []byte("#!/bin/sh\ncat >/dev/null\necho \"$@\" >>"+cluster.DriverRoot+"/hooks\n"), 0o755))
	if err := errors.Join(errs...); err != nil {
		e.Fatal(err)
	}
}

// rootOf returns the file system of a pod's container of the sample image.
func (e *env) rootOf(pod *v1.Pod) string {
	e.Helper()
	processes, err := e.cluster.ContainerProcesses("sample")
	if err != nil {
		e.Fatal(err)
	}
	i := slices.IndexFunc(processes, func(p cluster.ContainerProcess) bool { return p.Pod == pod.UID })
	if i < 0 {
		e.Fatalf("pod %s has no process", pod.Name)
	}
	return fmt.Sprintf("/proc/%d/root", processes[i].PID)
}
