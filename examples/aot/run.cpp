// Runs a package of AOTInductor whose graph has fastconv's ops, without Python.
// run MODEL.pt2 INPUT.pt LIBRARY...     the libraries: libfastconv_cpu.so, for a GPU libfastconv_cuda.so after it
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// What torch.save wrote of one tensor.
at::Tensor load(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}}).toTensor();
}

void run(const char* package, const char* input, char** libraries) {
  // A library registers its ops as it is loaded. They have to be there before the package is.
  for (; *libraries; ++libraries) {
    if (!dlopen(*libraries, RTLD_NOW)) throw std::runtime_error(dlerror());
  }
  torch::inductor::AOTIModelPackageLoader model(package);
  const at::Tensor output = model.run({load(input)}).at(0).cpu().contiguous();
  const float* value = output.const_data_ptr<float>();
  for (int64_t row = 0; row < output.size(0); ++row) {
    for (int64_t column = 0; column < output.size(1); ++column) std::printf("%.9g ", *value++);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 4) throw std::runtime_error("usage: run MODEL.pt2 INPUT.pt LIBRARY...");
  run(argv[1], argv[2], argv + 3);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
