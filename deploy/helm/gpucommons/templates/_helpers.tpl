{{- define "gpucommons.labels" -}}
app.kubernetes.io/name: gpucommons
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Whether any resource of the device plugin is offered: "true" or empty. */}}
{{- define "gpucommons.shares" -}}
{{- if or .Values.shares.perGpu .Values.shares.nvsharePerGpu .Values.shares.xpusharePerGpu }}true{{ end }}
{{- end }}

{{- define "gpucommons.selector" -}}
app.kubernetes.io/name: gpucommons
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: agent-{{ .kind }}
{{- end }}

{{/* One DaemonSet; `kind` is gpu or cpu. */}}
{{- define "gpucommons.daemonset" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .root.Release.Name }}-{{ .kind }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "gpucommons.labels" .root | nindent 4 }}
    app.kubernetes.io/component: agent-{{ .kind }}
spec:
  selector:
    matchLabels:
      {{- include "gpucommons.selector" . | nindent 6 }}
  updateStrategy:
    rollingUpdate:
      maxUnavailable: 10%
  template:
    metadata:
      labels:
        {{- include "gpucommons.selector" . | nindent 8 }}
        # For the Service: the pauser's pods have no listener.
        gpucommons.io/agent: "true"
      annotations:
        # A changed setting restarts the agents.
        checksum/config: {{ .root.Values.config | sha256sum }}
    spec:
      serviceAccountName: {{ .root.Release.Name }}
      hostPID: true
      priorityClassName: system-node-critical
      terminationGracePeriodSeconds: 10
      {{- if eq .kind "gpu" }}
      {{- with .root.Values.gpu.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- with .root.Values.gpu.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.gpu.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- else }}
      {{- with .root.Values.gpu.nodeSelector }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              {{- range $key, $value := . }}
              - matchExpressions:
                  - key: {{ $key }}
                    operator: NotIn
                    values: [{{ $value | quote }}]
              {{- end }}
      {{- end }}
      {{- with .root.Values.cpu.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      containers:
        - name: agent
          image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag }}"
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: ["up", "--config", "/etc/gpucommons/gpucommons.toml"]
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            {{- if eq .kind "gpu" }}
            - name: NVIDIA_VISIBLE_DEVICES
              value: all
            - name: NVIDIA_DRIVER_CAPABILITIES
              value: utility
            {{- if .root.Values.sharing.enabled }}
            - name: GPUCOMMONS_SCHEDULER_SHARE_PROGRAMS
              value: all
            # The agent is root without capabilities: its own pauser could pause nothing.
            - name: GPUCOMMONS_SCHEDULER_PAUSER_SOCKET
              value: /run/gpucommons-pauser/pauser.sock
            {{- end }}
            {{- if include "gpucommons.shares" .root }}
            - name: GPUCOMMONS_KUBERNETES_SHARES_PER_GPU
              value: {{ .root.Values.shares.perGpu | quote }}
            - name: GPUCOMMONS_KUBERNETES_NVSHARE_SHARES_PER_GPU
              value: {{ .root.Values.shares.nvsharePerGpu | quote }}
            - name: GPUCOMMONS_KUBERNETES_XPUSHARE_SHARES_PER_GPU
              value: {{ .root.Values.shares.xpusharePerGpu | quote }}
            - name: GPUCOMMONS_KUBERNETES_PLACEMENT
              value: {{ .root.Values.shares.placement }}
            - name: GPUCOMMONS_KUBERNETES_NVSHARE_LIBRARY
              value: {{ .root.Values.shares.nvshareLibrary | quote }}
            {{- end }}
            {{- if ne .root.Values.faults.report "off" }}
            - name: GPUCOMMONS_KUBERNETES_REPORT_FAULTS
              value: {{ .root.Values.faults.report }}
            {{- end }}
            {{- end }}
          ports:
            - name: metrics
              containerPort: 9460
            - name: node
              containerPort: 9100
            - name: dcgm
              containerPort: 9400
            - name: vgpu
              containerPort: 8080
          livenessProbe:
            httpGet:
              path: /healthz
              port: metrics
            periodSeconds: 10
            timeoutSeconds: 3
          readinessProbe:
            httpGet:
              path: /readyz
              port: metrics
            periodSeconds: 5
            timeoutSeconds: 3
          resources:
            {{- toYaml .root.Values.resources | nindent 12 }}
          securityContext:
            {{- if eq .kind "gpu" }}
            # The kubelet's socket is accessible to root only. This root has no capabilities.
            runAsUser: 0
            {{- else }}
            runAsNonRoot: true
            runAsUser: 65532
            runAsGroup: 65532
            {{- end }}
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: ["ALL"]
            seccompProfile:
              type: RuntimeDefault
          volumeMounts:
            - name: config
              mountPath: /etc/gpucommons
              readOnly: true
            - name: gpu-allocation
              mountPath: /etc/gpucommons-vgpu
              readOnly: true
            - name: state
              mountPath: /var/lib/gpucommons
            {{- if eq .kind "gpu" }}
            - name: pod-resources
              mountPath: /var/lib/kubelet/pod-resources
              readOnly: true
            - name: nvshare
              mountPath: /var/run/nvshare
            - name: xpushare
              mountPath: /var/run/xpushare
            - name: api-socket
              mountPath: /run/gpucommons
            {{- if .root.Values.sharing.enabled }}
            - name: pauser
              mountPath: /run/gpucommons-pauser
            # The memory limits of other containers: what is parked is charged to its container.
            - name: cgroups
              mountPath: /host/sys/fs/cgroup
              readOnly: true
              {{- if semverCompare ">=1.31-0" .root.Capabilities.KubeVersion.Version }}
              recursiveReadOnly: IfPossible
              {{- end }}
            {{- end }}
            {{- if include "gpucommons.shares" .root }}
            - name: device-plugins
              mountPath: /var/lib/kubelet/device-plugins
            - name: cdi
              mountPath: /etc/cdi
              readOnly: true
            - name: cdi-generated
              mountPath: /var/run/cdi
              readOnly: true
            {{- end }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ .root.Release.Name }}
            items:
              - key: gpucommons.toml
                path: gpucommons.toml
        - name: gpu-allocation
          configMap:
            name: {{ .root.Release.Name }}
            items:
              - key: gpu_allocation.txt
                path: gpu_allocation.txt
        {{- if eq .kind "gpu" }}
        - name: state
          hostPath:
            path: /var/lib/gpucommons
            type: DirectoryOrCreate
        - name: pod-resources
          hostPath:
            path: /var/lib/kubelet/pod-resources
            type: DirectoryOrCreate
        - name: nvshare
          hostPath:
            path: /var/run/nvshare
            type: DirectoryOrCreate
        - name: xpushare
          hostPath:
            path: /var/run/xpushare
            type: DirectoryOrCreate
        - name: api-socket
          hostPath:
            path: /run/gpucommons
            type: DirectoryOrCreate
        {{- if .root.Values.sharing.enabled }}
        - name: pauser
          hostPath:
            path: /run/gpucommons-pauser
            type: DirectoryOrCreate
        - name: cgroups
          hostPath:
            path: /sys/fs/cgroup
            type: Directory
        {{- end }}
        {{- if include "gpucommons.shares" .root }}
        - name: device-plugins
          hostPath:
            path: /var/lib/kubelet/device-plugins
            type: DirectoryOrCreate
        - name: cdi
          hostPath:
            path: /etc/cdi
            type: DirectoryOrCreate
        - name: cdi-generated
          hostPath:
            path: /var/run/cdi
            type: DirectoryOrCreate
        {{- end }}
        {{- else }}
        - name: state
          emptyDir: {}
        {{- end }}
{{- end }}
