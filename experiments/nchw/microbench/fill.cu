// How fast raw NCHW rows reach shared memory: bulk copies of one row each by 1 or 32 lanes, tensor boxes, cp.async.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdint>
#include <algorithm>
__device__ uint32_t sa(const void*p){return (uint32_t)__cvta_generic_to_shared(p);}
__device__ void mwait(uint32_t b,uint32_t ph){ uint32_t d; do{ asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}":"=r"(d):"r"(b),"r"(ph):"memory");}while(!d);}
__device__ void expect(uint32_t b,uint32_t n){ asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;"::"r"(b),"r"(n):"memory");}
__device__ void bulk(uint32_t s,const void*g,uint32_t n,uint32_t b){ asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"::"r"(s),"l"(g),"r"(n),"r"(b):"memory");}
constexpr int ST=4, STB=40960;
// A stage is `rows` x 16 channels rows of `bytes`.
template<int LANES> __global__ void kbulk(const uint8_t*x,int bytes,int rows,int stages,int64_t plane,int64_t rowp,int64_t span,long long*clk){
  extern __shared__ uint8_t raw[]; uint32_t s=(sa(raw)+1023)&~1023u; uint32_t bar=s+ST*STB; int l=threadIdx.x;
  if(l==0){ for(int i=0;i<ST;i++) asm volatile("mbarrier.init.shared::cta.b64 [%0],1;"::"r"(bar+8*i)); asm volatile("fence.mbarrier_init.release.cluster;"); } __syncwarp();
  long long t0=clock64(); int n=16*rows;
  for(int i=0;i<stages+ST;i++){ if(i>=ST) mwait(bar+8*(i%ST),(i/ST-1)&1); if(i>=stages) continue; __syncwarp();
    if(l==0) expect(bar+8*(i%ST),n*bytes); __syncwarp();
    const uint8_t*g=x+((int64_t)blockIdx.x*stages+i)*rows*rowp%span/16*16; 
    if(LANES==1){ if(l==0) for(int k=0;k<n;k++) bulk(s+i%ST*STB+k*bytes,g+(k%16)*plane+(k/16)*rowp,bytes,bar+8*(i%ST)); }
    else for(int k=l;k<n;k+=32) bulk(s+i%ST*STB+k*bytes,g+(k%16)*plane+(k/16)*rowp,bytes,bar+8*(i%ST)); }
  if(l==0) clk[blockIdx.x]=clock64()-t0; }
__global__ void ktma(const __grid_constant__ CUtensorMap map,int bytes,int rows,int ch,int stages,int W,int H,long long*clk){
  extern __shared__ uint8_t raw[]; uint32_t s=(sa(raw)+1023)&~1023u; uint32_t bar=s+ST*STB; int l=threadIdx.x;
  if(l==0){ for(int i=0;i<ST;i++) asm volatile("mbarrier.init.shared::cta.b64 [%0],1;"::"r"(bar+8*i)); asm volatile("fence.mbarrier_init.release.cluster;");
  long long t0=clock64(); int per=std::max(1,W*2/bytes), pr=H/rows;
  for(int i=0;i<stages+ST;i++){ if(i>=ST) mwait(bar+8*(i%ST),(i/ST-1)&1); if(i>=stages) continue; 
    expect(bar+8*(i%ST),ch*rows*bytes); int j=blockIdx.x*stages+i; 
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%3,%4,%5,%6}],[%2];"::"r"(s+i%ST*STB),"l"(&map),"r"(bar+8*(i%ST)),"r"(j%per*(bytes/2)-1),"r"(0),"r"(j/per%pr*rows),"r"(j/per/pr%64):"memory"); }
  clk[blockIdx.x]=clock64()-t0; } }
// 7 warps, each lane V bytes; lanes run along (row, column) of a channel
template<int V> __global__ void kcp(const uint8_t*x,int bytes,int rows,int stages,int64_t plane,int64_t rowp,int64_t span,long long*clk){
  extern __shared__ uint8_t raw[]; uint32_t s=(sa(raw)+1023)&~1023u; long long t0=clock64(); int n=16*rows*(bytes/V);
  for(int i=0;i<stages;i++){ const uint8_t*g=x+((int64_t)blockIdx.x*stages+i)*rows*rowp%span/16*16; uint32_t d=s+i%ST*STB; int per=bytes/V;
   for(int k=threadIdx.x;k<n;k+=224){ int row=k/per,col=k-row*per; 
    if(V==16) asm volatile("cp.async.cg.shared.global [%0],[%1],16;"::"r"(d+k*V),"l"(g+(row%16)*plane+(row/16)*rowp+col*V):"memory");
    else asm volatile("cp.async.ca.shared.global [%0],[%1],%2;"::"r"(d+k*V),"l"(g+(row%16)*plane+(row/16)*rowp+col*V),"n"(V):"memory"); }
   asm volatile("cp.async.commit_group;":::"memory"); asm volatile("cp.async.wait_group 3;":::"memory"); }
  asm volatile("cp.async.wait_group 0;":::"memory"); if(threadIdx.x==0) clk[blockIdx.x]=clock64()-t0; }
using Enc=decltype(&cuTensorMapEncodeTiled);
int main(){ uint8_t*x; size_t SZ=1ull<<30; cudaMalloc(&x,SZ+(1<<22)); cudaMemset(x,1,SZ); long long*clk; cudaMallocManaged(&clk,132*8); 
 void*f; cudaDriverEntryPointQueryResult q; cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",&f,12000,cudaEnableDefault,&q); Enc enc=(Enc)f;
 int sm=ST*STB+2048; auto attr=[&](auto k){cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,sm);}; attr(kbulk<1>);attr(kbulk<32>);attr(ktma);attr(kcp<4>);attr(kcp<8>);attr(kcp<16>);
 auto rep=[&](const char*n,int bytes,int rows,int ch,int stages,const char*where){ cudaDeviceSynchronize(); double m=0; for(int i=0;i<132;i++) m=std::max(m,(double)clk[i]); double copies=(double)ch*rows*stages; printf("%-9s %s row %4d B x %2d rows x %2d ch: %6.2f B/clk/SM, %6.1f clk a row   %s\n",n,where,bytes,rows,ch,copies*bytes/m,m/copies,cudaGetErrorString(cudaGetLastError())); fflush(stdout); };
 const int stages=200;
 for(int far=0;far<2;far++){ const char*wh=far?"DRAM":"L2  "; int64_t span=far?(int64_t)700<<20:(int64_t)8<<20; 
  for(int bytes:{32,64,144,160,272,512}){ int rows=std::min(16,STB/16/bytes); int64_t rowp=far?std::max(448,bytes+16):bytes+16; int64_t plane=far?1<<20:1<<18; if(far&&bytes==32)continue;
   for(int r=0;r<2;r++) kbulk<1><<<132,32,sm>>>(x,bytes,rows,stages,plane,rowp,span,clk); rep("bulk 1",bytes,rows,16,stages,wh);
   for(int r=0;r<2;r++) kbulk<32><<<132,32,sm>>>(x,bytes,rows,stages,plane,rowp,span,clk); rep("bulk 32",bytes,rows,16,stages,wh);
   if(bytes==144||bytes==512){ for(int r=0;r<2;r++) kcp<4><<<132,224,sm>>>(x,bytes,rows,stages,plane,rowp,span,clk); rep("cp4",bytes,rows,16,stages,wh);
    for(int r=0;r<2;r++) kcp<8><<<132,224,sm>>>(x,bytes,rows,stages,plane,rowp,span,clk); rep("cp8",bytes,rows,16,stages,wh);
    for(int r=0;r<2;r++) kcp<16><<<132,224,sm>>>(x,bytes,rows,stages,plane,rowp,span,clk); rep("cp16",bytes,rows,16,stages,wh);} }
  for(int ch:{16,64}) for(int W:{56,224,512}) for(int cols:{24,64,72,136}) { int H=W, bytes=cols*2; int rows=std::min(W==56?6:10,STB/ch/bytes); if(rows<1||cols>W+16) continue; int C=far?64:16; if(ch>C) continue; 
   cuuint64_t size[4]={(cuuint64_t)W,(cuuint64_t)C,(cuuint64_t)H,(cuuint64_t)(far?std::min<int64_t>(64,(int64_t)(SZ/2/C/H/W)):2)}, st[3]={(cuuint64_t)H*W*2,(cuuint64_t)W*2,(cuuint64_t)C*H*W*2}; cuuint32_t box[4]={(cuuint32_t)cols,(cuuint32_t)ch,(cuuint32_t)rows,1},es[4]={1,1,1,1}; CUtensorMap m;
   int e=enc(&m,CU_TENSOR_MAP_DATA_TYPE_FLOAT16,4,x,size,st,box,es,CU_TENSOR_MAP_INTERLEAVE_NONE,CU_TENSOR_MAP_SWIZZLE_NONE,CU_TENSOR_MAP_L2_PROMOTION_L2_256B,CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE); if(e){printf("encode %d\n",e);continue;}
   for(int r=0;r<2;r++) ktma<<<132,32,sm>>>(m,bytes,rows,ch,stages,W,H,clk); char name[32]; snprintf(name,32,"tma W%d",W); rep(name,bytes,rows,ch,stages,wh); } } }
