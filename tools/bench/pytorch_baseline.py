"""What a PyTorch user gets today on the same GPUs: a Llama-shaped model trained with DP, or TP with sequence
parallelism (Megatron-style, functional collectives), or a GPT-2 (LayerNorm, GELU, learned positions, biases, tied head;
DP alone), each block under torch.compile. bf16 weights, fp32 masters, AdamW.
Prints one JSON line a run: median step seconds, tokens/s/GPU, model FLOP/s utilisation against 989 TFLOP/s, peak GiB."""
import os, json, time, argparse, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
import torch.distributed._functional_collectives as fc
p=argparse.ArgumentParser(); p.add_argument('--model',default='1B'); p.add_argument('--mbs',type=int,default=4); p.add_argument('--seq',type=int,default=4096)
p.add_argument('--micro',type=int,default=1); p.add_argument('--par',default='dp'); p.add_argument('--compile',type=int,default=1); p.add_argument('--recompute',type=int,default=0)
p.add_argument('--steps',type=int,default=8); p.add_argument('--sdpa',default='auto'); p.add_argument('--loss',default='fused'); a=p.parse_args()
if a.sdpa=='cudnn': torch.backends.cuda.enable_flash_sdp(False); torch.backends.cuda.enable_cudnn_sdp(True)
if a.sdpa=='flash': torch.backends.cuda.enable_cudnn_sdp(False)
M={'1B':(16,2048,8192,32,8,128256),'3B':(28,3072,8192,24,8,128256),'8B':(32,4096,14336,32,8,128256),'mha1.8B':(24,2048,8192,32,32,51200)}
# Vocabulary padded to a multiple of 128, as ours is: unpadded, both lose.
M|={'gpt2':(12,768,3072,12,12,50304),'gpt2-large':(36,1280,5120,20,20,50304),'gpt2-xl':(48,1600,6400,25,25,50304)}
L,H,FF,NH,KV,V=M[a.model]; D=H//NH; GPT=a.model.startswith('gpt2')
W=int(os.environ.get('WORLD_SIZE',1)); R=int(os.environ.get('RANK',0)); torch.cuda.set_device(R)
if W>1: dist.init_process_group('nccl')
TP=W if a.par=='tp' else 1; assert not (GPT and TP>1), 'GPT-2 shapes have no tensor parallelism here'
G=dist.group.WORLD if W>1 else None
torch.manual_seed(1234+(R if TP>1 else 0)); bf=torch.bfloat16; dev='cuda'
def lin(i,o):
    w=nn.Parameter(torch.empty(o,i,device=dev,dtype=bf)); nn.init.normal_(w,std=0.02); return w
def gather(x): return fc.all_gather_tensor_autograd(x,0,G) if TP>1 else x
def scatter(x): return fc.reduce_scatter_tensor_autograd(x,'sum',0,G) if TP>1 else x
class Block(nn.Module):
    def __init__(s):
        super().__init__(); s.n1=nn.Parameter(torch.ones(H,device=dev,dtype=bf)); s.n2=nn.Parameter(torch.ones(H,device=dev,dtype=bf))
        s.qkv=lin(H,(NH+2*KV)//TP*D); s.o=lin(NH//TP*D,H); s.up=lin(H,2*FF//TP); s.dn=lin(FF//TP,H)
    def forward(s,x,cos,sin):          # x: [seq/TP, batch, H]
        h=gather(F.rms_norm(x,(H,),s.n1)); S,B=h.shape[:2]
        q,k,v=F.linear(h,s.qkv).view(S,B,-1,D).split([NH//TP,KV//TP,KV//TP],2)
        def rot(t):
            t1,t2=t.chunk(2,-1); return torch.cat((t1*cos-t2*sin,t2*cos+t1*sin),-1)
        q,k,v=[t.permute(1,2,0,3) for t in (rot(q),rot(k),v)]
        o=F.scaled_dot_product_attention(q,k,v,is_causal=True,enable_gqa=True).permute(2,0,1,3).reshape(S,B,-1)
        x=x+scatter(F.linear(o,s.o))
        h=gather(F.rms_norm(x,(H,),s.n2)); g,u=F.linear(h,s.up).chunk(2,-1)
        return x+scatter(F.linear(F.silu(g)*u,s.dn))
def vec(n,v): return nn.Parameter(torch.full((n,),v,device=dev,dtype=bf))
class GptBlock(nn.Module):
    def __init__(s):
        super().__init__(); s.n1,s.b1,s.n2,s.b2=vec(H,1.),vec(H,0.),vec(H,1.),vec(H,0.)
        s.qkv,s.o,s.up,s.dn=lin(H,3*H),lin(H,H),lin(H,FF),lin(FF,H); s.bqkv,s.bo,s.bup,s.bdn=vec(3*H,0.),vec(H,0.),vec(FF,0.),vec(H,0.)
    def forward(s,x,cos,sin):
        h=F.layer_norm(x,(H,),s.n1,s.b1); S,B=h.shape[:2]
        q,k,v=[t.permute(1,2,0,3) for t in F.linear(h,s.qkv,s.bqkv).view(S,B,3*NH,D).split(NH,2)]
        o=F.scaled_dot_product_attention(q,k,v,is_causal=True).permute(2,0,1,3).reshape(S,B,-1)
        x=x+F.linear(o,s.o,s.bo)
        h=F.layer_norm(x,(H,),s.n2,s.b2)
        return x+F.linear(F.gelu(F.linear(h,s.up,s.bup),approximate='tanh'),s.dn,s.bdn)
def ce_max(x): return x.float().amax(-1)
def ce_sums(x,m,idx,inb):
    y=x.float()-m[:,None]; return torch.stack((y.exp().sum(-1),y.gather(1,idx[:,None])[:,0]*inb))
def ce_grad(x,m,z,idx,inb,g):
    hot=(torch.arange(x.shape[1],device=x.device)[None]==idx[:,None])&inb[:,None]
    return (((x.float()-m[:,None]).exp()/z[:,None]-hot.float())*g).to(x.dtype)
if a.compile: ce_max,ce_sums,ce_grad=map(torch.compile,(ce_max,ce_sums,ce_grad))
class VocabCE(torch.autograd.Function):     # mean over rows; vocabulary sliced over the tensor group
    @staticmethod
    def forward(ctx,x,t,r):
        m=ce_max(x)
        if TP>1: dist.all_reduce(m,dist.ReduceOp.MAX)
        lo=r*x.shape[1]; idx=(t-lo).clamp(0,x.shape[1]-1); inb=(t>=lo)&(t<lo+x.shape[1])
        s=ce_sums(x,m,idx,inb)
        if TP>1: dist.all_reduce(s)
        ctx.save_for_backward(x,m,s[0],idx,inb); return (s[0].log()-s[1]).mean()
    @staticmethod
    def backward(ctx,g):
        x,m,z,idx,inb=ctx.saved_tensors; return ce_grad(x,m,z,idx,inb,g/x.shape[0]),None,None
class LM(nn.Module):
    def __init__(s):
        super().__init__(); s.emb=nn.Parameter(torch.randn(V,H,device=dev,dtype=bf)*0.02) if TP==1 else lin(H,V)
        s.blocks=nn.ModuleList((GptBlock if GPT else Block)() for _ in range(L)); s.n=nn.Parameter(torch.ones(H,device=dev,dtype=bf))
        if GPT: s.pos,s.nb,s.head=lin(H,a.seq),vec(H,0.),s.emb      # tied
        else: s.head=lin(H,V//TP)
    def forward(s,t,y,cos,sin):        # t,y: [seq, batch]
        x=F.embedding(t,s.emb)+s.pos[:,None] if GPT else F.embedding(t,s.emb)
        if TP>1: x=x.chunk(TP,0)[R].contiguous()
        for b in s.blocks:
            x=torch.utils.checkpoint.checkpoint(b,x,cos,sin,use_reentrant=False) if a.recompute else b(x,cos,sin)
        if GPT: return gpt_tail(x,s.n,s.nb,s.head,y)
        if TP==1 and a.loss=='compiled': return tail(x,s.n,s.head,y)
        return VocabCE.apply(F.linear(gather(F.rms_norm(x,(H,),s.n)),s.head).view(-1,V//TP),y.reshape(-1),R)
def tail(x,n,head,y): return F.cross_entropy(F.linear(F.rms_norm(x,(H,),n),head).view(-1,V).float(),y.reshape(-1))
def gpt_tail(x,n,b,head,y): return F.cross_entropy(F.linear(F.layer_norm(x,(H,),n,b),head).view(-1,V).float(),y.reshape(-1))
if a.compile: tail,gpt_tail=map(torch.compile,(tail,gpt_tail))
m=LM(); P=sum(q.numel() for q in m.parameters())
if a.compile:
    for b in m.blocks: b.compile()
pos=torch.arange(a.seq,device=dev)[:,None].float(); inv=500000.0**(-torch.arange(0,D//2,device=dev).float()/(D//2))
cos=torch.cos(pos*inv)[:,None,None].to(bf); sin=torch.sin(pos*inv)[:,None,None].to(bf)
net=nn.parallel.DistributedDataParallel(m,device_ids=[R],gradient_as_bucket_view=True) if (W>1 and TP==1) else m
ps=list(m.parameters()); mast=[q.detach().float() for q in ps]; opt=torch.optim.AdamW(mast,lr=1e-4,fused=True)
def step():
    for k in range(a.micro):
        t=torch.randint(0,V,(a.seq,a.mbs),device=dev)
        if TP>1: dist.broadcast(t,0)
        ctx=net.no_sync() if (net is not m and k<a.micro-1) else torch.enable_grad()
        with ctx: loss=net(t,t.roll(-1,0),cos,sin); (loss/a.micro).backward()
    with torch.no_grad():
        for q,w in zip(ps,mast):
            if w.grad is None: w.grad=q.grad.float()
            else: w.grad.copy_(q.grad)
            q.grad.zero_()
        torch.nn.utils.clip_grad_norm_(mast,1.0); opt.step(); torch._foreach_copy_(ps,mast)
    return loss
ts=[]
for i in range(a.steps+4):
    torch.cuda.synchronize(); t0=time.time(); l=step(); torch.cuda.synchronize(); ts.append(time.time()-t0)
t=sorted(ts[4:])[a.steps//2]
if R==0:
    N=L*(H*(NH+2*KV)*D+NH*D*H+(2 if GPT else 3)*H*FF)+V*H; tok=a.mbs*a.seq*a.micro*(W if TP==1 else 1)
    fl=tok*(6*N+6*L*NH*D*a.seq)      # causal attention counted as half of 12*L*h*s
    print(json.dumps(dict(model=a.model,par=a.par,gpus=W,mbs=a.mbs,seq=a.seq,micro=a.micro,compile=a.compile,recompute=a.recompute,sdpa=a.sdpa,loss_impl=a.loss,params_rank=P,step_s=round(t,5),
      tok_s_gpu=round(tok/t/W),tflops_gpu=round(fl/t/W/1e12,1),mfu=round(fl/t/W/989e12,4),peak_gib=round(torch.cuda.max_memory_allocated()/2**30,2),reserved_gib=round(torch.cuda.max_memory_reserved()/2**30,2),loss=round(float(l),4))),flush=True)
if W>1: dist.destroy_process_group()
