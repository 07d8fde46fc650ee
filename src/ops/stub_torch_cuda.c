// Stands in for libtorch_cuda.so when libfastconv_cuda.so is linked on a machine whose torch has no CUDA. It lists
// every symbol that fastconv takes from there (all in the stable C shim), so -z defs still catches any other. Never
// shipped.
void aoti_torch_get_current_cuda_stream(void) {}
