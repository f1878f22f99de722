package daemon

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Kube is how a program reaches the API server.
type Kube struct {
	Config string // file; empty: that of the pod's service account
	QPS    float32
	Burst  int
}

// AddFlags adds the flags that say it.
func (k *Kube) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&k.Config, "kubeconfig", k.Config, "`file` with access to the API server; empty: that of the pod's service account")
	f.Float32Var(&k.QPS, "kube-api-qps", k.QPS, "requests per second to the API server")
	f.IntVar(&k.Burst, "kube-api-burst", k.Burst, "requests to the API server at once")
}

// Validate reports rates at which nothing would be asked.
func (k Kube) Validate() error {
	if !(k.QPS > 0) || k.Burst <= 0 { // NaN too
		return errors.New("--kube-api-qps and --kube-api-burst: want more than 0")
	}
	return nil
}

// Client returns a client of the API server, which knows it by the name and version of
// the program.
func (k Kube) Client(program, version string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Config)
	if err != nil {
		return nil, fmt.Errorf("find the API server (give --kubeconfig outside of a cluster): %w", err)
	}
	config.QPS, config.Burst = k.QPS, k.Burst
	config.UserAgent = program + "/" + version
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	return client, nil
}
