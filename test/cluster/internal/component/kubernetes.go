package component

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// kubernetesVariable is the environment variable with a folder of Kubernetes' own binaries, which
// replace the component Kube.
const kubernetesVariable = "GPUMEM_KUBERNETES"

// kubePrograms are the programs of Kubernetes that a cluster starts.
func kubePrograms() []string {
	return []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", "kubectl"}
}

// prebuilt returns the folder that GPUMEM_KUBERNETES names, or "" if it is not set. Each program must
// be there, and be of the minor version that gpumem-scheduler is built for.
func prebuilt(ctx context.Context) (dir string, err error) {
	dir = os.Getenv(kubernetesVariable)
	if dir == "" {
		return "", nil
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s is %q: want the absolute path of a folder", kubernetesVariable, dir)
	}
	minor := KubernetesVersion[:strings.LastIndex(KubernetesVersion, ".")+1]
	for _, name := range kubePrograms() {
		args := []string{"--version"}
		if name == "kubectl" {
			args = []string{"version", "--client"}
		}
		output, err := exec.CommandContext(ctx, filepath.Join(dir, name), args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s: run %s: %w: %s", kubernetesVariable, filepath.Join(dir, name), err, strings.TrimSpace(string(output)))
		}
		if !strings.Contains(string(output), " "+minor) {
			return "", fmt.Errorf("%s: %s is %q, want %s*: download them as \"make demo\" shows",
				kubernetesVariable, filepath.Join(dir, name), strings.TrimSpace(string(output)), minor)
		}
	}
	return dir, nil
}

// DownloadAdvice returns the commands that download and check Kubernetes' own binaries.
func DownloadAdvice() string {
	return fmt.Sprintf(`To download Kubernetes instead of building it, press Ctrl-C and run (needs curl):

  mkdir -p bin/kubernetes && (cd bin/kubernetes && for program in %s; do
    address=https://dl.k8s.io/%s/bin/linux/%s/$program
    curl -fLO "$address" && echo "$(curl -fsL "$address.sha256")  $program" | sha256sum --check || exit 1
  done && chmod +x *) && GPUMEM_KUBERNETES=$PWD/bin/kubernetes make demo
`, strings.Join(kubePrograms(), " "), KubernetesVersion, runtime.GOARCH)
}
