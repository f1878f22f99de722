package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
)

// The network of a cluster. Clusters do not see each other's, nor does the
// machine, so it is the same in all.
const (
	fabric           = "fabric" // name of the namespace with the control plane and the bridge
	bridge           = "br0"
	apiServerIP      = "172.30.0.1"
	apiServerAddress = apiServerIP + ":6443"
	podNetwork       = "10.244.0.0/16"
	serviceNetwork   = "10.96.0.0/16"
	serviceIP        = "10.96.0.1" // of the API server
	dnsIP            = "10.96.0.10"
)

func fabricAddress() netip.Prefix {
	return netip.PrefixFrom(netip.MustParseAddr(apiServerIP), 16)
}

// path returns the path of a file in the cluster's folder.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

// writeCredentials makes the authority, what the control plane shows and
// verifies, and the kubeconfig files of its clients.
func (c *Cluster) writeCredentials() error {
	pki := c.path("pki")
	ca, err := newAuthority(pki)
	if err != nil {
		return err
	}
	c.ca = ca
	if err := serviceAccountKey(filepath.Join(pki, "service-account.key")); err != nil {
		return err
	}
	err = ca.server("apiserver", apiServerIP, serviceIP, "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	// What the API server passes on to aggregated servers, they must believe of
	// nobody else: hence an authority of its own.
	front, err := newAuthority(filepath.Join(pki, "front-proxy"))
	if err != nil {
		return err
	}
	if err := front.client("client", "front-proxy-client"); err != nil {
		return err
	}
	if err := ca.client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"); err != nil {
		return err
	}
	for _, name := range []string{"controller-manager", "scheduler", "kube-proxy"} {
		user := "system:kube-" + name
		if name == "kube-proxy" {
			user = "system:kube-proxy"
		}
		if err := c.writeKubeconfig(c.path(name+".kubeconfig"), name, "https://"+apiServerAddress, user); err != nil {
			return err
		}
	}
	return c.writeKubeconfig(c.Kubeconfig(), "admin", fmt.Sprintf("https://127.0.0.1:%d", c.state.Port), "admin", "system:masters")
}

// writeKubeconfig issues a client certificate called name and writes the
// kubeconfig file that holds all that its user needs.
func (c *Cluster) writeKubeconfig(file, name, server, user string, groups ...string) error {
	if err := c.ca.client(name, user, groups...); err != nil {
		return err
	}
	var content [3][]byte
	for i, part := range []string{"ca.crt", name + ".crt", name + ".key"} {
		var err error
		if content[i], err = os.ReadFile(c.path("pki", part)); err != nil {
			return err
		}
	}
	config := clientcmdapi.NewConfig()
	context := "gpumem-" + c.state.Name
	config.Clusters[context] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: content[0]}
	config.AuthInfos[context] = &clientcmdapi.AuthInfo{ClientCertificateData: content[1], ClientKeyData: content[2]}
	config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: context}
	config.CurrentContext = context
	return clientcmd.WriteToFile(*config, file)
}

// startEtcdAndAPIServer starts both at once: the one waits for the other.
func (c *Cluster) startEtcdAndAPIServer(config Config) error {
	const peers = "http://127.0.0.1:2380"
	const clients = "http://127.0.0.1:2379"
	err := c.run("etcd", fabric, c.state.Components.Program(component.Base, "server"),
		"--name=etcd",
		"--data-dir="+c.path("etcd"),
		"--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers,
		"--initial-cluster=etcd="+peers,
		"--listen-client-urls="+clients,
		"--advertise-client-urls="+clients,
		// What a killed process has written is safe; only that of a machine
		// that loses power is not.
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	args := []string{
		"--advertise-address=" + apiServerIP,
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--client-ca-file=" + c.path("pki", "ca.crt"),
		"--enable-admission-plugins=NodeRestriction",
		// The control plane runs no kube-proxy: webhooks and aggregated APIs
		// are called at their endpoints.
		"--enable-aggregator-routing=true",
		"--etcd-servers=" + clients,
		"--kubelet-certificate-authority=" + c.path("pki", "ca.crt"),
		"--kubelet-client-certificate=" + c.path("pki", "apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + c.path("pki", "apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--proxy-client-cert-file=" + c.path("pki", "front-proxy", "client.crt"),
		"--proxy-client-key-file=" + c.path("pki", "front-proxy", "client.key"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file=" + c.path("pki", "front-proxy", "ca.crt"),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--secure-port=6443",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("pki", "service-account.key"),
		"--service-account-signing-key-file=" + c.path("pki", "service-account.key"),
		"--service-cluster-ip-range=" + serviceNetwork,
		"--tls-cert-file=" + c.path("pki", "apiserver.crt"),
		"--tls-private-key-file=" + c.path("pki", "apiserver.key"),
		"--shutdown-delay-duration=0s",
	}
	if len(config.AuditPolicy) > 0 {
		policy := c.path("audit-policy.yaml")
		if err := os.WriteFile(policy, config.AuditPolicy, 0o644); err != nil {
			return err
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog())
	}
	return c.runKube("apiserver", fabric, "kube-apiserver", args...)
}

// startControllers starts the clients of the control plane.
func (c *Cluster) startControllers(config Config) error {
	err := c.runKube("controller-manager", fabric, "kube-controller-manager",
		"--allocate-node-cidrs=false",
		"--authentication-kubeconfig="+c.path("controller-manager.kubeconfig"),
		"--authorization-kubeconfig="+c.path("controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1",
		"--cluster-cidr="+podNetwork,
		"--cluster-signing-cert-file="+c.path("pki", "ca.crt"),
		"--cluster-signing-key-file="+c.path("pki", "ca.key"),
		// At the usual rate, its start alone takes four seconds more.
		"--kube-api-burst=300",
		"--kube-api-qps=200",
		"--kubeconfig="+c.path("controller-manager.kubeconfig"),
		"--leader-elect=false",
		"--root-ca-file="+c.path("pki", "ca.crt"),
		"--service-account-private-key-file="+c.path("pki", "service-account.key"),
		"--service-cluster-ip-range="+serviceNetwork,
		"--use-service-account-credentials=true",
	)
	if err != nil || config.NoScheduler {
		return err
	}
	return c.StartScheduler(config.SchedulerConfig)
}

// StartScheduler starts the default scheduler, the process "scheduler", or another
// program that takes its flags, with more flags, and with a
// KubeSchedulerConfiguration as Config.SchedulerConfig has it. An earlier one
// must have ended.
func (c *Cluster) StartScheduler(config []byte, instead ...string) error {
	file := c.path("scheduler.yaml")
	if err := writeSchedulerConfig(file, config, c.SchedulerKubeconfig()); err != nil {
		return err
	}
	if len(instead) == 0 {
		instead = []string{c.state.Components.Program(component.Kube, "kube-scheduler")}
	}
	return c.Run("scheduler", instead[0], append(slices.Clone(instead[1:]),
		"--authentication-kubeconfig="+c.SchedulerKubeconfig(),
		"--authorization-kubeconfig="+c.SchedulerKubeconfig(),
		"--bind-address=127.0.0.1",
		"--config="+file,
	)...)
}

// SchedulerKubeconfig returns the file with which a program beside the control
// plane talks to the API server as kube-scheduler.
func (c *Cluster) SchedulerKubeconfig() string { return c.path("scheduler.kubeconfig") }

// Run starts a program beside the control plane, in its network, as a process of
// that name. An earlier one of the name must have ended.
func (c *Cluster) Run(name, path string, args ...string) error {
	if _, running := c.Running(name); running {
		return fmt.Errorf("the process %s runs already", name)
	}
	return c.run(name, fabric, path, args...)
}

// writeSchedulerConfig writes a KubeSchedulerConfiguration, given or the
// default, that uses the kubeconfig.
func writeSchedulerConfig(file string, given []byte, kubeconfig string) error {
	config := make(map[string]any)
	if err := yaml.Unmarshal(given, &config); err != nil {
		return fmt.Errorf("the scheduler's configuration: %w", err)
	}
	for key, value := range map[string]any{
		"apiVersion":     "kubescheduler.config.k8s.io/v1",
		"kind":           "KubeSchedulerConfiguration",
		"leaderElection": map[string]any{"leaderElect": false},
	} {
		if _, ok := config[key]; !ok {
			config[key] = value
		}
	}
	connection, _ := config["clientConnection"].(map[string]any)
	if connection == nil {
		connection = make(map[string]any)
		config["clientConnection"] = connection
	}
	connection["kubeconfig"] = kubeconfig
	content, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// runKube runs one of Kubernetes' programs.
func (c *Cluster) runKube(name, where, program string, args ...string) error {
	return c.run(name, where, c.state.Components.Program(component.Kube, program), args...)
}
