package usage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	podUID  = "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b"
	slicUID = "0f7a2c1e_3b4d_4e5f_8a9b_0c1d2e3f4a5b"
)

var (
	containerID = strings.Repeat("0123456789abcdef", 4)
	otherID     = strings.Repeat("fedcba9876543210", 4)
)

func TestParseCgroups(t *testing.T) {
	in := Owner{Pod: podUID, Container: containerID}
	for name, tc := range map[string]struct {
		text string
		want Owner
	}{
		"v2, cgroupfs, containerd":       {"0::/kubepods/burstable/pod" + podUID + "/" + containerID + "\n", in},
		"v2, cgroupfs, guaranteed":       {"0::/kubepods/pod" + podUID + "/" + containerID + "\n", in},
		"v2, systemd, containerd":        {"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + slicUID + ".slice/cri-containerd-" + containerID + ".scope\n", in},
		"v2, systemd, guaranteed":        {"0::/kubepods.slice/kubepods-pod" + slicUID + ".slice/cri-containerd-" + containerID + ".scope\n", in},
		"v2, systemd, CRI-O":             {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + slicUID + ".slice/crio-" + containerID + ".scope\n", in},
		"v2, systemd, CRI-O, one deeper": {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + slicUID + ".slice/crio-" + containerID + ".scope/container\n", in},
		"CRI-O's monitor":                {"0::/kubepods.slice/kubepods-pod" + slicUID + ".slice/crio-conmon-" + containerID + ".scope\n", Owner{Pod: podUID}},
		"v2, systemd, cri-dockerd":       {"0::/kubepods.slice/kubepods-pod" + slicUID + ".slice/docker-" + containerID + ".scope\n", in},
		"the runtime has another driver": {"0::/system.slice/kubepods-burstable-pod" + slicUID + ".slice:cri-containerd:" + containerID + "\n", in},
		"no hexadecimal name":            {"0::/kubepods/pod" + podUID + "/" + strings.Repeat("x", 64) + "\n", Owner{Pod: podUID}},
		"below a root of the kubelet's":  {"0::/clusters/e2e/node1/kubepods/besteffort/pod" + podUID + "/" + containerID + "\n", in},
		"systemd, below a root":          {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + slicUID + ".slice/cri-containerd-" + containerID + ".scope\n", in},
		"a group of the container's own": {"0::/kubepods/pod" + podUID + "/" + containerID + "/init/worker\n", in},
		"a container in a container":     {"0::/kubepods/pod" + podUID + "/" + containerID + "/" + otherID + "\n", in},
		"from another namespace":         {"0::/../../besteffort/pod" + podUID + "/" + containerID + "\n", in},
		"v1": {
			"12:pids:/kubepods/burstable/pod" + podUID + "/" + containerID + "\n11:cpu,cpuacct:/kubepods/burstable/pod" + podUID + "/" + containerID + "\n1:name=systemd:/kubepods/burstable/pod" + podUID + "/" + containerID + "\n0::/\n", in,
		},
		"v1, one hierarchy without":   {"3:devices:/\n2:freezer:/kubepods/pod" + podUID + "/" + containerID + "\n", in},
		"v1, systemd":                 {"1:name=systemd:/kubepods.slice/kubepods-pod" + slicUID + ".slice/cri-containerd-" + containerID + ".scope\n", in},
		"a static pod":                {"0::/kubepods/burstable/pod0f7a2c1e3b4d4e5f8a9b0c1d2e3f4a5b/" + containerID + "\n", Owner{Pod: "0f7a2c1e3b4d4e5f8a9b0c1d2e3f4a5b", Container: containerID}},
		"a pod's, and no container's": {"0::/kubepods/pod" + podUID + "\n", Owner{Pod: podUID}},
		"a service of the host":       {"0::/system.slice/nvidia-persistenced.service\n", Owner{}},
		"a container of nobody":       {"0::/docker/" + containerID + "\n", Owner{}},
		"a service with a like name":  {"0::/system.slice/podman.service\n", Owner{}},
		"the root":                    {"0::/\n", Owner{}},
		"nothing":                     {"", Owner{}},
		"nonsense":                    {"pod:" + podUID, Owner{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseCgroups(tc.text); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "7", "cgroup"), []byte("0::/kubepods/pod"+podUID+"/"+containerID+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := (Proc{root}).Owner(7); err != nil || got.Container != containerID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := (Proc{root}).Owner(8); !errors.Is(err, ErrGone) {
		t.Errorf("of a process that has ended: %v", err)
	}
	if _, err := (Proc{"/proc"}).Owner(os.Getpid()); err != nil {
		t.Errorf("of this process: %v", err)
	}
}

// FuzzParseCgroups verifies that an owner's IDs are well-formed and occur in the text, and that a container
// always has its pod.
func FuzzParseCgroups(f *testing.F) {
	for _, s := range []string{
		"0::/kubepods/pod" + podUID + "/" + containerID, "0::/kubepods-pod" + slicUID + ".slice/crio-" + containerID + ".scope",
		"::::", "1:a:/pod/pod", "0::/" + containerID + "/pod" + podUID, "0::/x-pod.slice/y.scope", "0::/pod" + podUID + "/\n0::/",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o := parseCgroups(text)
		if o.Container != "" && (o.Pod == "" || len(o.Container) != 64 || !strings.Contains(text, o.Container)) {
			t.Errorf("container %q of pod %q", o.Container, o.Pod)
		}
		if o.Pod != "" && uid(o.Pod) == "" {
			t.Errorf("pod %q", o.Pod)
		}
		if o.Pod != "" && !strings.Contains(text, o.Pod) && !strings.Contains(text, strings.ReplaceAll(o.Pod, "-", "_")) &&
			!strings.Contains(strings.ReplaceAll(text, "_", "-"), o.Pod) {
			t.Errorf("pod %q is not in %q", o.Pod, text)
		}
	})
}
